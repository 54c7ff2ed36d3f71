#include "formats/pickle_tree.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "base/file_text.h"
#include "formats/pickle_globals.h"

namespace coupler::pickle {
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
                                                              : shown((*same)->text())));
}

}  // namespace coupler::pickle
