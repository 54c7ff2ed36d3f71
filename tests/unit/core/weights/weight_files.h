// Small weights in a temporary folder, and a source's content in a comparable form.
// Single-threaded.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "formats/safetensors_writer.h"
#include "refusal.h"
#include "weights/open_weights.h"
#include "weights/weight_source.h"

namespace coupler::testing {

struct PlainTensor {
  safetensors::DType dtype{};
  std::vector<int64_t> shape;
  std::string bytes;
  bool operator==(const PlainTensor&) const = default;
};
using PlainTensors = std::map<std::string, PlainTensor>;

inline std::string bytes_of(const weights::WeightTensor& tensor) {
  std::string bytes;
  tensor.read([&](const char* chunk, size_t size) {
    EXPECT_LE(size, weights::kWeightChunk);
    bytes.append(chunk, size);
  });
  return bytes;
}

// Any range of elements is that part of the whole, in chunks of whole elements.
inline void expect_ranges(const weights::WeightTensor& tensor, const std::string& bytes) {
  const size_t element = safetensors::bits(tensor.dtype) / 8;
  if (element == 0) return;
  const size_t count = bytes.size() / element;
  std::mt19937 random(3);
  for (int round = 0; round < 4; ++round) {
    size_t begin = std::uniform_int_distribution<size_t>(0, count)(random) * element;
    size_t end = std::uniform_int_distribution<size_t>(0, count)(random) * element;
    if (begin > end) std::swap(begin, end);
    std::string part;
    weights::read_range(tensor, begin, end, [&](const char* chunk, size_t size) {
      EXPECT_EQ(size % element, 0u);
      part.append(chunk, size);
    });
    EXPECT_EQ(part, bytes.substr(begin, end - begin)) << tensor.name;
  }
}

// A value that is said to be in a file must be there.
inline PlainTensors plain(const weights::WeightSource& source) {
  PlainTensors result;
  for (const weights::WeightTensor& tensor : source.tensors) {
    const std::string bytes = bytes_of(tensor);
    if (const auto& file = tensor.place.file; file != nullptr && !bytes.empty()) {
      if (tensor.verify) tensor.verify();
      EXPECT_EQ(bytes.compare(0, bytes.size(),
                              reinterpret_cast<const char*>(file->data()) + tensor.place.begin,
                              bytes.size()),
                0)
          << tensor.name;
    }
    expect_ranges(tensor, bytes);
    result[tensor.name] = {tensor.dtype, tensor.shape, bytes};
  }
  return result;
}

inline std::string file_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class WeightFilesTest : public ::testing::Test {
 protected:
  WeightFilesTest() {
    std::string path = (std::filesystem::temp_directory_path() / "coupler-weights-XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    folder_ = path;
  }
  ~WeightFilesTest() override { std::filesystem::remove_all(folder_); }

  std::string at(const std::string& name) const { return (folder_ / name).string(); }

  // Written by PyTorch; see make_fixtures.py in the same folder.
  static std::string fixture(const std::string& name) {
    return COUPLER_SOURCE_DIR "/tests/unit/core/weights/fixtures/" + name;
  }

  void put(const std::string& name, const std::string& text = "") const {
    std::filesystem::create_directories(std::filesystem::path(at(name)).parent_path());
    std::ofstream(at(name), std::ios::binary) << text;
  }

  // The names in a folder, sorted.
  std::string names_in(const std::string& name) const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(at(name)))
      names.insert(entry.path().filename().string());
    return fmt::format("{}", fmt::join(names, " "));
  }

  static weights::WeightSource open(const std::string& path,
                                    const weights::OpenWeights& options = {}) {
    return weights::open_weights(path, options);
  }

  // The message of the error from opening and reading everything, without the test's own folder.
  std::string refusal(const std::string& path, ErrorCode code,
                      const weights::OpenWeights& options = {}) const {
    return without_folder(refusal_of(code, [&] { plain(open(path, options)); }));
  }
  std::string without_folder(std::string text) const {
    const std::string own = folder_.string() + "/";
    for (size_t found = text.find(own); found != std::string::npos; found = text.find(own))
      text.erase(found, own.size());
    return text;
  }

  // Of all dtypes and ranks, some without elements, some larger than a chunk.
  PlainTensors random_tensors(size_t count, bool large = false) {
    using safetensors::DType;
    constexpr DType kDtypes[] = {DType::kBool, DType::kU8,  DType::kF8E4M3, DType::kF16,
                                 DType::kBF16, DType::kF32, DType::kI64,    DType::kC64};
    PlainTensors tensors;
    for (size_t i = 0; i < count; ++i) {
      PlainTensor tensor{.dtype = kDtypes[random(0, 7)], .shape = {}, .bytes = {}};
      for (int64_t rank = random(0, 4); rank > 0; --rank) tensor.shape.push_back(random(0, 9));
      if (large && i == 0) tensor.shape = {3, 2'000'000};
      const auto bytes = safetensors::tensor_bytes(tensor.dtype, tensor.shape);
      for (uint64_t n = 0; n < *bytes; ++n) tensor.bytes += static_cast<char>(random_());
      tensors[fmt::format("layer.{}.é{}", random(0, 99), i)] = std::move(tensor);
    }
    return tensors;
  }

  int64_t random(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random_);
  }

  void write(const std::string& name, const PlainTensors& tensors,
             const safetensors::Metadata& metadata = {{"format", "pt"}}) const {
    std::filesystem::create_directories(std::filesystem::path(at(name)).parent_path());
    std::vector<safetensors::TensorEntry> entries;
    for (const auto& [tensor, value] : tensors)
      entries.push_back({tensor, value.dtype, value.shape});
    safetensors::Writer writer(at(name), entries, metadata);
    for (const auto& info : writer.tensors()) {
      const std::string& bytes = tensors.at(info.name).bytes;
      writer.write(info.name, bytes.data(), bytes.size());
    }
    writer.finish();
  }

  std::filesystem::path folder_;
  std::mt19937 random_{20261122};
};

}  // namespace coupler::testing
