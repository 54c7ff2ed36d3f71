// Arbitrary bytes as a safetensors file. What the reader accepts obeys the format's rules, and the
// writer's layout of the same tensors is accepted and reads back unchanged.
#include "formats/safetensors_header.h"

#include <coupler/error.h>

#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "expect.h"
#include "formats/safetensors_writer.h"

namespace coupler::safetensors {
namespace {

using fuzz::expect;

std::optional<Header> parse(const std::vector<uint8_t>& file) {
  try {
    return parse_header(file.data(), file.size(), "input");
  } catch (const Error& error) {
    expect(error.code() == ErrorCode::kIo, "a broken file is an I/O error");
    return std::nullopt;
  }
}

void check_rules(const Header& header, uint64_t size) {
  uint64_t end = 0;
  expect(header.index.size() == header.tensors.size(), "every tensor is in the index");
  for (size_t i = 0; i < header.tensors.size(); ++i) {
    const TensorInfo& tensor = header.tensors[i];
    expect(header.index.at(tensor.name) == i, "the index points to the tensor");
    expect(tensor.name != kMetadataKey, "no tensor is named like the metadata");
    expect(tensor.begin == end, "ranges have no gaps and do not overlap");
    end = tensor.end;
    expect(tensor_bytes(tensor.dtype, tensor.shape) == tensor.end - tensor.begin,
           "a range's length matches the shape");
  }
  expect(header.data_offset + end == size, "the last range ends at the end of the file");
}

void check_writer(const Header& header) {
  std::vector<TensorEntry> entries;
  for (const TensorInfo& tensor : header.tensors)
    entries.push_back({tensor.name, tensor.dtype, tensor.shape});
  const Layout layout = lay_out(entries, header.metadata, "output");
  std::vector<uint8_t> file(layout.head.begin(), layout.head.end());
  file.resize(file.size() + layout.data_bytes);
  const auto again = parse(file);
  expect(again.has_value(), "the reader accepts the writer's layout");
  check_rules(*again, file.size());
  expect(again->metadata == header.metadata, "the metadata reads back the same");
  expect(again->tensors.size() == header.tensors.size(), "no tensor is lost");
  for (const TensorInfo& tensor : header.tensors) {
    const auto found = again->index.find(tensor.name);
    expect(found != again->index.end(), "every name reads back");
    const TensorInfo& same = again->tensors[found->second];
    expect(same.dtype == tensor.dtype && same.shape == tensor.shape,
           "every dtype and shape reads back");
  }
}

void check(const std::vector<uint8_t>& file) {
  const auto header = parse(file);
  if (!header) return;
  check_rules(*header, file.size());
  check_writer(*header);
}

}  // namespace
}  // namespace coupler::safetensors

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using coupler::safetensors::check;
  check({data, data + size});
  // Also uses the input as a header's JSON up to a NUL byte, followed by the data, so that a
  // mutation of the JSON's length needs no matching change of the length field.
  const uint8_t* const end = data + size;
  const auto* const nul =
      size == 0 ? nullptr : static_cast<const uint8_t*>(std::memchr(data, 0, size));
  const uint64_t length = static_cast<uint64_t>((nul == nullptr ? end : nul) - data);
  std::vector<uint8_t> file(sizeof length);
  std::memcpy(file.data(), &length, sizeof length);
  file.insert(file.end(), data, data + length);
  if (nul != nullptr) file.insert(file.end(), nul + 1, end);
  check(file);
  return 0;
}
