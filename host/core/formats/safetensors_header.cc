#include "formats/safetensors_header.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>

#include "base/file_text.h"
#include "formats/header_json.h"

static_assert(std::endian::native == std::endian::little,
              "safetensors data is little-endian and is used in place");

namespace coupler::safetensors {
namespace {

[[noreturn]] void broken(const std::string& file, const Problem& problem) {
  const std::string where =
      problem.tensor.empty() ? file : fmt::format("{}: tensor '{}'", file, shown(problem.tensor));
  throw Error(ErrorCode::kIo, fmt::format("{}: {}", where, problem.rule),
              {.subject = problem.tensor.empty() ? file : shown(problem.tensor),
               .hint = "the file is damaged or not a safetensors file; copy or write it again"});
}

// The layout rules: every tensor's range has the length that its shape and dtype require, ranges in
// offset order have neither holes nor overlaps, and the last one ends at the end of the file.
std::optional<Problem> check_layout(const std::vector<TensorInfo>& tensors, uint64_t data_bytes) {
  uint64_t previous_end = 0;
  for (const TensorInfo& tensor : tensors) {
    const auto problem = [&](std::string rule) { return Problem{tensor.name, std::move(rule)}; };
    const std::string range = fmt::format("data_offsets [{}, {}]", tensor.begin, tensor.end);
    if (tensor.begin > tensor.end) return problem(range + " end before they begin");
    if (tensor.end > data_bytes)
      return problem(fmt::format("{} reach past the file's {} bytes of data", range, data_bytes));
    const auto size = tensor_bytes(tensor.dtype, tensor.shape);
    if (!size)
      return problem(fmt::format("shape × dtype {} is not a whole number of bytes below 2^63",
                                 to_string(tensor.dtype)));
    if (tensor.end - tensor.begin != *size)
      return problem(fmt::format("{} hold {} bytes, but shape × dtype {} needs {}", range,
                                 tensor.end - tensor.begin, to_string(tensor.dtype), *size));
    if (tensor.begin != previous_end)
      return problem(fmt::format("{} {} the previous tensor, which ends at {}", range,
                                 tensor.begin < previous_end ? "overlap" : "leave a hole after",
                                 previous_end));
    previous_end = tensor.end;
  }
  if (previous_end != data_bytes)
    return Problem{"", fmt::format("{} bytes of data, but the tensors end at byte {}: trailing "
                                   "bytes are not allowed",
                                   data_bytes, previous_end)};
  return std::nullopt;
}

}  // namespace

std::optional<uint64_t> tensor_bytes(DType dtype, const std::vector<int64_t>& shape) {
  constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  uint64_t elements = 1;
  bool empty = false;
  for (const int64_t dimension : shape) {
    if (dimension < 0) return std::nullopt;
    empty = empty || dimension == 0;
    const uint64_t factor = std::max<int64_t>(dimension, 1);
    if (elements > kMax / factor) return std::nullopt;
    elements *= factor;
  }
  if (elements > kMax / bits(dtype)) return std::nullopt;
  const uint64_t all_bits = empty ? 0 : elements * bits(dtype);
  if (all_bits % 8 != 0) return std::nullopt;
  return all_bits / 8;
}

Header parse_header(const uint8_t* bytes, uint64_t size, const std::string& file) {
  uint64_t length = 0;
  if (size < sizeof length)
    broken(file, {"", fmt::format("{} bytes are too few for the 8-byte header length", size)});
  std::memcpy(&length, bytes, sizeof length);
  const uint64_t rest = size - sizeof length;
  if (length > kMaxHeaderBytes)
    broken(file,
           {"", fmt::format("header length {} exceeds the format's {}", length, kMaxHeaderBytes)});
  if (length > rest)
    broken(file,
           {"", fmt::format("header length {} exceeds the {} bytes that follow it", length, rest)});
  const std::string_view json(reinterpret_cast<const char*>(bytes) + sizeof length, length);
  if (!json.starts_with('{')) broken(file, {"", "the header must start with '{'"});
  // The JSON parser would take it for the end and ignore what follows.
  if (json.find('\0') != std::string_view::npos) broken(file, {"", "the header holds a NUL byte"});

  Header header;
  header.data_offset = sizeof length + length;
  if (const auto problem = read_header_json(json, header)) broken(file, *problem);
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const TensorInfo& a, const TensorInfo& b) {
              return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
            });
  for (size_t i = 0; i < header.tensors.size(); ++i) header.index[header.tensors[i].name] = i;
  if (const auto problem = check_layout(header.tensors, rest - length)) broken(file, *problem);
  return header;
}

}  // namespace coupler::safetensors
