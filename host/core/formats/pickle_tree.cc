#include "formats/pickle_tree.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>

#include "base/text.h"

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

namespace {

constexpr uint8_t kOpen = std::numeric_limits<uint8_t>::max();  // a height: still being visited
static_assert(kMaxDepth < kOpen && kMaxValues < std::numeric_limits<uint32_t>::max());

// Any order in which equal keys are adjacent.
bool before(const Value* a, const Value* b) {
  if (a->kind() != b->kind()) return a->kind() < b->kind();
  if (a->kind() == Kind::kInt) return a->integer() < b->integer();
  return std::tuple(a->text().size(), a->text()) < std::tuple(b->text().size(), b->text());
}

}  // namespace

void TreeCheck::fail(const std::string& rule) const {
  throw Error(ErrorCode::kIo, fmt::format("{}: its pickle: {}", file_, rule),
              {.subject = file_,
               .hint = "if you trust its author, load it with PyTorch and save only its "
                       "state_dict()"});
}

void TreeCheck::check(Value* root) {
  enter(root);
  while (!path_.empty()) {
    Visit& visit = path_.back();
    const auto& items = std::get<Value::Items>(visit.value->content_);
    if (visit.next < items.size()) {
      enter(items[visit.next++]);
    } else {
      leave(visit.value);
      path_.pop_back();
    }
  }
}

void TreeCheck::enter(Value* value) {
  if (const auto* global = std::get_if<const Global*>(&value->content_)) {
    if ((*global)->role != Role::kElementType)
      fail(fmt::format("'{}' itself where a value is expected", (*global)->name));
  }
  if (value->height_ == kOpen) fail("a container holds itself");
  if (value->height_ != 0) return;
  if (!std::holds_alternative<Value::Items>(value->content_)) {
    value->height_ = 1;
    value->total_ = 1;
    return;
  }
  if (path_.size() == kMaxDepth) fail(fmt::format("it nests deeper than {} levels", kMaxDepth));
  value->height_ = kOpen;
  path_.push_back({value});
}

void TreeCheck::leave(Value* value) {
  uint64_t height = 0;
  uint64_t total = 1;
  for (const Value* item : std::get<Value::Items>(value->content_)) {
    height = std::max<uint64_t>(height, item->height_);
    total += item->total_;
    if (total > kMaxValues)
      fail(fmt::format("it holds more than {} values, counting shared values once per reference",
                       kMaxValues));
  }
  if (height >= kMaxDepth) fail(fmt::format("it nests deeper than {} levels", kMaxDepth));
  value->height_ = static_cast<uint8_t>(height + 1);
  value->total_ = static_cast<uint32_t>(total);
  if (value->kind() == Kind::kDict) check_keys(*value);
}

void TreeCheck::check_keys(const Value& dictionary) {
  const auto items = dictionary.items();
  keys_.clear();
  for (size_t i = 0; i < items.size(); i += 2) keys_.push_back(items[i]);
  std::sort(keys_.begin(), keys_.end(), before);
  const auto same = std::adjacent_find(
      keys_.begin(), keys_.end(),
      [](const auto* a, const auto* b) { return !before(a, b) && !before(b, a); });
  if (same == keys_.end()) return;
  fail(fmt::format("a dictionary has the key '{}' twice", (*same)->kind() == Kind::kInt
                                                              ? std::to_string((*same)->integer())
                                                              : for_message((*same)->text())));
}

}  // namespace coupler::pickle
