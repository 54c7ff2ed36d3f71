#include "coupler/safetensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "coupler/error.h"
#include "io/mapped_file.h"
#include "io/safetensors_header.h"

namespace coupler {
namespace {

using safetensors::DType;

at::ScalarType scalar_type(DType dtype, const std::string& where) {
  switch (dtype) {
    case DType::kBool:
      return at::kBool;
    case DType::kU8:
      return at::kByte;
    case DType::kI8:
      return at::kChar;
    case DType::kF8E5M2:
      return at::kFloat8_e5m2;
    case DType::kF8E4M3:
      return at::kFloat8_e4m3fn;
    case DType::kF8E8M0:
      return at::kFloat8_e8m0fnu;
    case DType::kF8E5M2Fnuz:
      return at::kFloat8_e5m2fnuz;
    case DType::kF8E4M3Fnuz:
      return at::kFloat8_e4m3fnuz;
    case DType::kI16:
      return at::kShort;
    case DType::kU16:
      return at::kUInt16;
    case DType::kF16:
      return at::kHalf;
    case DType::kBF16:
      return at::kBFloat16;
    case DType::kI32:
      return at::kInt;
    case DType::kU32:
      return at::kUInt32;
    case DType::kF32:
      return at::kFloat;
    case DType::kC64:
      return at::kComplexFloat;
    case DType::kF64:
      return at::kDouble;
    case DType::kI64:
      return at::kLong;
    case DType::kU64:
      return at::kUInt64;
    case DType::kF4:
    case DType::kF6E2M3:
    case DType::kF6E3M2:
      break;
  }
  throw Error(
      ErrorCode::kUnsupported,
      fmt::format("{}: LibTorch has no tensor of dtype {}", where, safetensors::to_string(dtype)),
      {.subject = where, .hint = "store the tensor in a dtype of whole bytes"});
}

std::string some_names(const std::vector<std::string>& names) {
  constexpr size_t kShown = 8;
  const auto last = names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), kShown));
  return fmt::format("{}{} ({} in all)", fmt::join(names.begin(), last, ", "),
                     names.size() > kShown ? ", …" : "", names.size());
}

}  // namespace

struct SafeTensors::File {
  std::shared_ptr<const MappedFile> bytes;
  safetensors::Header header;
  std::vector<std::string> names;
};

SafeTensors::SafeTensors(std::shared_ptr<const File> file) : file_(std::move(file)) {}

SafeTensors SafeTensors::open(const std::string& path) {
  auto file = std::make_shared<File>();
  file->bytes = MappedFile::open(path);
  file->header = safetensors::parse_header(file->bytes->data(), file->bytes->size(), path);
  file->names.reserve(file->header.tensors.size());
  for (const auto& tensor : file->header.tensors) file->names.push_back(tensor.name);
  return SafeTensors(std::move(file));
}

const std::vector<std::string>& SafeTensors::names() const { return file_->names; }

bool SafeTensors::contains(const std::string& name) const {
  return file_->header.index.contains(name);
}

const std::map<std::string, std::string, std::less<>>& SafeTensors::metadata() const {
  return file_->header.metadata;
}

at::Tensor SafeTensors::tensor(const std::string& name) const {
  const auto& path = file_->bytes->path();
  const auto found = file_->header.index.find(name);
  if (found == file_->header.index.end())
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{} holds no tensor '{}'", path, name),
                {.subject = name, .hint = "it holds: " + some_names(file_->names)});
  const safetensors::TensorInfo& info = file_->header.tensors[found->second];
  const std::string where = fmt::format("{}: tensor '{}'", path, name);
  const auto options = at::TensorOptions(scalar_type(info.dtype, where));
  if (info.begin == info.end) return at::empty(info.shape, options);

  uint8_t* const data = file_->bytes->data() + file_->header.data_offset + info.begin;
  const uint64_t size = info.end - info.begin;
  if (info.dtype == DType::kBool) {
    const auto* wrong = std::find_if(data, data + size, [](uint8_t byte) { return byte > 1; });
    if (wrong != data + size)
      throw Error(ErrorCode::kIo,
                  fmt::format("{}: BOOL element {} is the byte {}, neither 0 nor 1", where,
                              wrong - data, *wrong),
                  {.subject = name, .hint = {}});
  }
  const uint64_t element = safetensors::bits(info.dtype) / 8;
  if (reinterpret_cast<uintptr_t>(data) % element != 0) {
    at::Tensor copy = at::empty(info.shape, options);
    std::memcpy(copy.data_ptr(), data, size);
    return copy;
  }
  return at::from_blob(
      data, info.shape, [keep = file_->bytes](void*) {}, options);
}

}  // namespace coupler
