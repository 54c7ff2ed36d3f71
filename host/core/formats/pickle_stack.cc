// The machine's basics: a pickle's bytes, the stack, and the containers that opcodes fill.

#include <coupler/error.h>
#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "base/file_text.h"
#include "formats/pickle_machine.h"

namespace coupler::pickle {

Machine::Machine(std::string_view bytes, const std::string& file)
    : bytes_(bytes), file_(file), arena_(std::make_shared<Arena>()) {
  none_ = make(Kind::kNone, {});
  true_ = make(Kind::kBool, true);
  false_ = make(Kind::kBool, false);
}

void Machine::refuse(const std::string& what, const std::string& hint) const {
  throw Error(ErrorCode::kIo, fmt::format("{}: its pickle, byte {}: {}", file_, opcode_at_, what),
              {.subject = file_, .hint = hint});
}

void Machine::fail(const std::string& rule) const {
  refuse(rule,
         "the file is damaged, or holds more than a state dict; if you trust its author, load it "
         "with PyTorch and save its state_dict() again");
}

std::string_view Machine::take(uint64_t count) {
  if (count > bytes_.size() - at_) fail("it is truncated");
  at_ += count;
  return bytes_.substr(at_ - count, count);
}

std::string_view Machine::take_line() {
  const size_t end = bytes_.find('\n', at_);
  if (end == std::string_view::npos) fail("it is truncated");
  const std::string_view line = take(end - at_);
  at_ += 1;
  return line;
}

int64_t Machine::long_number(uint64_t bytes) {
  if (bytes > sizeof(int64_t))
    fail(fmt::format("an integer of {} bytes exceeds the supported 8", bytes));
  const std::string_view digits = take(bytes);
  // The highest byte's highest bit is the sign.
  uint64_t value = !digits.empty() && (digits.back() & 0x80) != 0 ? ~uint64_t{0} : 0;
  std::memcpy(&value, digits.data(), digits.size());
  return static_cast<int64_t>(value);
}

Value* Machine::make(Kind kind, Value::Content content) {
  if (arena_->values.size() >= kMaxValues)
    fail(fmt::format("it holds more than {} values", kMaxValues));
  return &arena_->values.emplace_back(kind, std::move(content));
}

void Machine::push(Value* value) {
  if (stack_.size() >= kMaxValues) fail(fmt::format("it holds more than {} values", kMaxValues));
  stack_.push_back(value);
}

Value* Machine::top() const {
  if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) fail("a value is missing");
  return stack_.back();
}

Value* Machine::pop() {
  Value* value = top();
  stack_.pop_back();
  return value;
}

Value::Items Machine::pop_to_mark() {
  if (marks_.empty()) fail("the start of a container is missing");
  const auto first = stack_.begin() + static_cast<ptrdiff_t>(marks_.back());
  Items items(first, stack_.end());
  stack_.erase(first, stack_.end());
  marks_.pop_back();
  return items;
}

void Machine::push_text(Kind kind, uint64_t bytes) {
  const std::string_view text = take(bytes);
  if (kind == Kind::kString && !valid_utf8(text)) fail("a string is not valid UTF-8");
  push(make(kind, text));
}

void Machine::push_tuple(size_t count) {
  Items items(count);
  for (size_t i = count; i > 0; --i) items[i - 1] = pop();
  push(make(Kind::kTuple, std::move(items)));
}

void Machine::append(const Items& items) {
  Value* list = top();
  if (list->kind() != Kind::kList)
    fail(fmt::format("{} where a list is expected", to_string(list->kind())));
  auto& target = std::get<Items>(list->content_);
  target.insert(target.end(), items.begin(), items.end());
}

void Machine::set_items(const Items& items) {
  Value* dictionary = top();
  if (dictionary->kind() != Kind::kDict)
    fail(fmt::format("{} where a dictionary is expected", to_string(dictionary->kind())));
  if (items.size() % 2 != 0) fail("a dictionary's key has no value");
  for (size_t i = 0; i < items.size(); i += 2) {
    const Kind kind = items[i]->kind();
    if (kind != Kind::kString && kind != Kind::kInt)
      fail(fmt::format("{} is the key of a dictionary; only strings and integers are supported",
                       to_string(kind)));
    if (kind == Kind::kString && items[i]->text().size() > kMaxKeyBytes)
      fail(fmt::format("a dictionary's key has more than {} bytes", kMaxKeyBytes));
  }
  auto& target = std::get<Items>(dictionary->content_);
  target.insert(target.end(), items.begin(), items.end());
}

}  // namespace coupler::pickle
