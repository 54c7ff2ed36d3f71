#include "tensors/safetensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <coupler/error.h>
#include <coupler/state_dict.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/mapped_file.h"
#include "formats/safetensors_header.h"

namespace coupler::safetensors {
namespace {

constexpr std::array<std::pair<DType, at::ScalarType>, 19> kTypes{{
    {DType::kBool, at::kBool},
    {DType::kU8, at::kByte},
    {DType::kI8, at::kChar},
    {DType::kF8E5M2, at::kFloat8_e5m2},
    {DType::kF8E4M3, at::kFloat8_e4m3fn},
    {DType::kF8E8M0, at::kFloat8_e8m0fnu},
    {DType::kF8E5M2Fnuz, at::kFloat8_e5m2fnuz},
    {DType::kF8E4M3Fnuz, at::kFloat8_e4m3fnuz},
    {DType::kI16, at::kShort},
    {DType::kU16, at::kUInt16},
    {DType::kF16, at::kHalf},
    {DType::kBF16, at::kBFloat16},
    {DType::kI32, at::kInt},
    {DType::kU32, at::kUInt32},
    {DType::kF32, at::kFloat},
    {DType::kC64, at::kComplexFloat},
    {DType::kF64, at::kDouble},
    {DType::kI64, at::kLong},
    {DType::kU64, at::kUInt64},
}};

}  // namespace

at::ScalarType scalar_type(DType dtype, const std::string& where) {
  for (const auto& [file, torch] : kTypes) {
    if (file == dtype) return torch;
  }
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{}: LibTorch has no dtype {}", where, to_string(dtype)),
              {.subject = where, .hint = "store the tensor in a dtype with whole bytes"});
}

DType dtype_of(at::ScalarType type, const std::string& where) {
  for (const auto& [file, torch] : kTypes) {
    if (torch == type) return file;
  }
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{}: safetensors files have no dtype {}", where, c10::toString(type)),
              {.subject = where, .hint = "convert the tensor before saving it"});
}

}  // namespace coupler::safetensors

namespace coupler {
namespace {

using safetensors::DType;
using safetensors::scalar_type;

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
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{} has no tensor '{}'", path, name),
                {.subject = name, .hint = "it has: " + some_names(file_->names)});
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
                  fmt::format("{}: BOOL element {} has the value {}, which is neither 0 nor 1",
                              where, wrong - data, *wrong),
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
