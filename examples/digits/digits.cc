#include "digits.h"

#include <ATen/Functions.h>

#include <charconv>
#include <fstream>
#include <stdexcept>
#include <vector>

namespace {

constexpr int64_t kImagePixels = 64;
constexpr int64_t kTrainRows = 1437;
constexpr int64_t kTestRows = 360;

}  // namespace

Digits load_digits(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot open " + path + " (give the file with --data)");
  std::vector<float> pixels;
  std::vector<int64_t> labels;
  std::string line;
  while (std::getline(file, line)) {
    const char* at = line.data();
    const char* end = at + line.size();
    int64_t values = 0;
    for (; at < end; ++values) {
      int value = 0;
      const auto [next, error] = std::from_chars(at, end, value);
      if (error != std::errc{} || values > kImagePixels) break;
      if (values < kImagePixels) {
        pixels.push_back(static_cast<float>(value) / 16);
      } else {
        labels.push_back(value);
      }
      at = next < end && *next == ',' ? next + 1 : next;
    }
    if (values != kImagePixels + 1) {
      throw std::runtime_error(path + ":" + std::to_string(labels.size() + 1) +
                               ": expected 64 pixels and a label, separated by commas");
    }
  }
  const auto rows = static_cast<int64_t>(labels.size());
  if (rows != kTrainRows + kTestRows) {
    throw std::runtime_error(path + " has " + std::to_string(rows) + " rows, expected 1797");
  }
  const at::Tensor x = at::tensor(pixels).view({rows, kImagePixels});
  const at::Tensor y = at::tensor(labels);
  return {.train_pixels = x.narrow(0, 0, kTrainRows).contiguous(),
          .train_labels = y.narrow(0, 0, kTrainRows).contiguous(),
          .test_pixels = x.narrow(0, kTrainRows, kTestRows),
          .test_labels = y.narrow(0, kTrainRows, kTestRows)};
}
