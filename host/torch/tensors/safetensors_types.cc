#include "tensors/safetensors_types.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <array>
#include <utility>

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
