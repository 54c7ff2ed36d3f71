#include "formats/pickle_globals.h"

#include <algorithm>
#include <array>

namespace coupler::pickle {
namespace {

using safetensors::DType;

constexpr std::array<ElementType, 20> kTypes{{
    {"torch.bool", 1, DType::kBool},
    {"torch.uint8", 1, DType::kU8},
    {"torch.int8", 1, DType::kI8},
    {"torch.int16", 2, DType::kI16},
    {"torch.int32", 4, DType::kI32},
    {"torch.int64", 8, DType::kI64},
    {"torch.float16", 2, DType::kF16},
    {"torch.bfloat16", 2, DType::kBF16},
    {"torch.float32", 4, DType::kF32},
    {"torch.float64", 8, DType::kF64},
    {"torch.complex64", 8, DType::kC64},
    {"torch.complex128", 16, std::nullopt},
    // Types without their own storage class.
    {"torch.uint16", 2, DType::kU16},
    {"torch.uint32", 4, DType::kU32},
    {"torch.uint64", 8, DType::kU64},
    {"torch.float8_e4m3fn", 1, DType::kF8E4M3},
    {"torch.float8_e5m2", 1, DType::kF8E5M2},
    {"torch.float8_e4m3fnuz", 1, DType::kF8E4M3Fnuz},
    {"torch.float8_e5m2fnuz", 1, DType::kF8E5M2Fnuz},
    {"torch.float8_e8m0fnu", 1, DType::kF8E8M0},
}};

// The storage classes of the types above, in their order.
constexpr std::array<std::string_view, 12> kStorages{
    "torch.BoolStorage",   "torch.ByteStorage",         "torch.CharStorage",
    "torch.ShortStorage",  "torch.IntStorage",          "torch.LongStorage",
    "torch.HalfStorage",   "torch.BFloat16Storage",     "torch.FloatStorage",
    "torch.DoubleStorage", "torch.ComplexFloatStorage", "torch.ComplexDoubleStorage",
};

constexpr std::array<Global, 12> kOthers{{
    {"collections.OrderedDict", Role::kOrderedDict},
    {"torch._utils._rebuild_tensor_v2", Role::kTensor},
    {"torch._utils._rebuild_tensor_v3", Role::kTensorOfType},
    {"torch._utils._rebuild_parameter", Role::kParameter},
    {"torch._utils._rebuild_parameter_with_state", Role::kParameterWithState},
    {"torch.Size", Role::kSize},
    {"torch.device", Role::kDevice},
    {"torch.storage.UntypedStorage", Role::kStorageType},
    // Builtins as named by protocol 2 and by later ones.
    {"__builtin__.set", Role::kSet},
    {"__builtin__.frozenset", Role::kSet},
    {"builtins.set", Role::kSet},
    {"builtins.frozenset", Role::kSet},
}};

constexpr auto kGlobals = [] {
  std::array<Global, kTypes.size() + kStorages.size() + kOthers.size()> all{};
  auto* next = all.begin();
  for (const Global& global : kOthers) *next++ = global;
  for (const ElementType& type : kTypes) *next++ = {type.name, Role::kElementType, &type};
  for (size_t i = 0; i < kStorages.size(); ++i)
    *next++ = {kStorages[i], Role::kStorageType, &kTypes[i]};
  return all;
}();

}  // namespace

const Global* find_global(std::string_view module, std::string_view name) {
  const auto* found = std::find_if(kGlobals.begin(), kGlobals.end(), [&](const Global& global) {
    return global.name.size() == module.size() + 1 + name.size() &&
           global.name.starts_with(module) && global.name.ends_with(name) &&
           global.name[module.size()] == '.';
  });
  return found == kGlobals.end() ? nullptr : found;
}

}  // namespace coupler::pickle
