// Arbitrary bytes as a model's index. An accepted index names only files next to it, and survives
// writing and reading unchanged.
#include "formats/weight_index.h"

#include <coupler/error.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "expect.h"

namespace coupler {
namespace {

using fuzz::expect;

std::optional<formats::WeightIndex> parse(std::string_view text) {
  try {
    return formats::parse_weight_index(text, "input");
  } catch (const Error& error) {
    expect(error.code() == ErrorCode::kIo, "a broken file is an I/O error");
    return std::nullopt;
  }
}

}  // namespace
}  // namespace coupler

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using coupler::fuzz::expect;
  // A heap copy of the exact size, so that the address sanitizer detects reads past the end.
  const std::vector<char> exact(data, data + size);
  const auto index = coupler::parse({exact.data(), exact.size()});
  if (!index) return 0;
  for (const auto& [tensor, file] : index->weight_map) {
    expect(!file.empty() && file != "." && file != "..", "a file has a name");
    expect(file.find('/') == std::string::npos, "a file is in the same folder");
    expect(file.find('\0') == std::string::npos, "a name has no NUL byte");
  }
  const std::string text = coupler::formats::format_weight_index(*index, "output");
  const auto again = coupler::parse(text);
  expect(again.has_value(), "the reader accepts the writer's output");
  expect(again->weight_map == index->weight_map, "the map reads back the same");
  expect(again->total_size == index->total_size, "the size reads back the same");
  return 0;
}
