// The safetensors format without tensors: parses and checks a file's header into names, dtypes,
// shapes and byte ranges. Pure functions on bytes, any thread. Does not depend on LibTorch.
//
// A file is an 8-byte little-endian header length N, N bytes of JSON, then the data. Files are
// untrusted, so that only what the format allows is accepted: see check_layout in the source for
// the rules. Work and memory grow linearly with N (n log n for names), and N is capped.
#pragma once

#include <coupler/error.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace coupler::safetensors {

inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // as in the reference implementation
inline constexpr uint64_t kMaxTensors = 1u << 18;         // against headers crafted to be slow
inline constexpr uint64_t kMaxRank = 64;

// In the order in which the reference implementation sorts a file, narrow to wide.
enum class DType {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

// The key of the header's strings; reserved, so that no tensor can have this name.
inline constexpr std::string_view kMetadataKey = "__metadata__";

std::string_view to_string(DType dtype);  // as in files: "BF16"
uint64_t bits(DType dtype);               // of one element

// The bytes of a tensor, or nothing if they are not a whole number or do not fit 63 bits.
// Dimensions of size 0 count as 1 in the overflow check, as in LibTorch's strides.
std::optional<uint64_t> tensor_bytes(DType dtype, const std::vector<int64_t>& shape);

struct TensorInfo {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  uint64_t begin;  // in bytes from Header::data_offset
  uint64_t end;
};

using Metadata = std::map<std::string, std::string, std::less<>>;  // "__metadata__"

struct Header {
  std::vector<TensorInfo> tensors;                   // in the order of their bytes
  std::map<std::string, size_t, std::less<>> index;  // name to position in tensors
  Metadata metadata;
  uint64_t data_offset = 0;  // where the data starts in the file
};

// Takes the whole file's bytes, but reads only the header. Throws Error(kIo) naming `file`, the
// tensor at fault if any, and the violated rule.
Header parse_header(const uint8_t* bytes, uint64_t size, const std::string& file);

// What is wrong with a file that names tensors: the tensor concerned (may be empty) and the rule
// that is broken.
struct Problem {
  std::string tensor;
  std::string rule;
};

// Throws an Error about the tensor or, if none is concerned, about the file.
[[noreturn]] void refuse_file(ErrorCode code, const std::string& file, const Problem& problem,
                              const std::string& hint);

}  // namespace coupler::safetensors
