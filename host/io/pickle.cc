#include "io/pickle.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <utility>

#include "coupler/error.h"
#include "io/file_text.h"
#include "io/pickle_machine.h"
#include "io/pickle_tree.h"

static_assert(std::endian::native == std::endian::little, "pickles are little-endian");

namespace coupler::pickle {
namespace {

// The instructions, with the names that Python's pickletools has for them.
enum Opcode : uint8_t {
  kMark = '(',
  kStop = '.',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kReduce = 'R',
  kBinUnicode = 'X',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kSetItems = 'u',
  kEmptyDict = '}',
  kEmptyList = ']',
  kEmptyTuple = ')',
  kBinFloat = 'G',
  kBinPersId = 'Q',
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kProto = 0x80,
  kNewObj = 0x81,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinBytes8 = 0x8e,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
};

}  // namespace

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
         "the file is damaged, or holds more than a state dict; where its author is trusted, load "
         "it with PyTorch and save its state_dict() again");
}

Value* Machine::run() {
  if (bytes_.size() > kMaxBytes)
    fail(fmt::format("{} bytes are more than the {} that are read", bytes_.size(), kMaxBytes));
  if (number<uint8_t>() != kProto) fail("it does not begin with a protocol's number");
  if (const auto protocol = number<uint8_t>(); protocol < 2 || protocol > 5)
    fail(fmt::format("it is of protocol {}; 2 to 5 are read", protocol));
  while (!stopped_) {
    opcode_at_ = at_;
    step();
  }
  if (at_ != bytes_.size()) fail("bytes follow the pickle's end");
  Value* root = pop();
  if (!stack_.empty() || !marks_.empty()) fail("it ends with values that belong to nothing");
  return root;
}

void Machine::step() {
  const auto opcode = number<uint8_t>();
  if (opcode == kStop) {
    stopped_ = true;
  } else if (opcode == kFrame) {
    if (number<uint64_t>() > bytes_.size() - at_) fail("a frame reaches past the pickle's end");
  } else if (!step_literal(opcode) && !step_container(opcode) && !step_memo(opcode) &&
             !step_object(opcode)) {
    fail(
        fmt::format("the instruction 0x{:02x} is not read: tensors, containers and numbers need "
                    "none such",
                    opcode));
  }
}

bool Machine::step_literal(uint8_t opcode) {
  const auto push_integer = [&](int64_t value) { push(make(Kind::kInt, value)); };
  switch (opcode) {
    case kNone:
      push(none_);
      return true;
    case kNewTrue:
      push(true_);
      return true;
    case kNewFalse:
      push(false_);
      return true;
    case kBinInt:
      push_integer(number<int32_t>());
      return true;
    case kBinInt1:
      push_integer(number<uint8_t>());
      return true;
    case kBinInt2:
      push_integer(number<uint16_t>());
      return true;
    case kLong1:
      push_integer(long_number(number<uint8_t>()));
      return true;
    case kLong4:
      push_integer(long_number(number<uint32_t>()));
      return true;
    case kBinFloat:  // the one number whose first byte is the highest
      push(make(Kind::kDouble, std::bit_cast<double>(__builtin_bswap64(number<uint64_t>()))));
      return true;
    case kShortBinUnicode:
      push_text(Kind::kString, number<uint8_t>());
      return true;
    case kBinUnicode:
      push_text(Kind::kString, number<uint32_t>());
      return true;
    case kBinUnicode8:
      push_text(Kind::kString, number<uint64_t>());
      return true;
    case kShortBinBytes:
      push_text(Kind::kBytes, number<uint8_t>());
      return true;
    case kBinBytes:
      push_text(Kind::kBytes, number<uint32_t>());
      return true;
    case kBinBytes8:
      push_text(Kind::kBytes, number<uint64_t>());
      return true;
    default:
      return false;
  }
}

bool Machine::step_container(uint8_t opcode) {
  switch (opcode) {
    case kMark:
      if (marks_.size() == kMaxDepth) fail(fmt::format("it is deeper than {}", kMaxDepth));
      marks_.push_back(stack_.size());
      return true;
    case kEmptyList:
      push(make(Kind::kList, Items{}));
      return true;
    case kEmptyTuple:
      push_tuple(0);
      return true;
    case kEmptyDict:
      push(make(Kind::kDict, Items{}));
      return true;
    case kTuple:
      push(make(Kind::kTuple, pop_to_mark()));
      return true;
    case kTuple1:
    case kTuple2:
    case kTuple3:
      push_tuple(opcode - kTuple1 + 1u);
      return true;
    case kAppend:
      append({pop()});
      return true;
    case kAppends:
      append(pop_to_mark());
      return true;
    case kSetItem: {
      Value* value = pop();
      Value* key = pop();
      set_items({key, value});
      return true;
    }
    case kSetItems:
      set_items(pop_to_mark());
      return true;
    default:
      return false;
  }
}

bool Machine::step_memo(uint8_t opcode) {
  const auto put = [&](uint64_t index) {
    if (index > memo_.size()) fail(fmt::format("it memorizes number {} out of turn", index));
    if (index == memo_.size()) memo_.push_back(nullptr);
    memo_[index] = top();
  };
  const auto get = [&](uint64_t index) {
    if (index >= memo_.size()) fail(fmt::format("it has memorized no number {}", index));
    push(memo_[index]);
  };
  switch (opcode) {
    case kBinPut:
      put(number<uint8_t>());
      return true;
    case kLongBinPut:
      put(number<uint32_t>());
      return true;
    case kMemoize:
      put(memo_.size());
      return true;
    case kBinGet:
      get(number<uint8_t>());
      return true;
    case kLongBinGet:
      get(number<uint32_t>());
      return true;
    default:
      return false;
  }
}

bool Machine::step_object(uint8_t opcode) {
  switch (opcode) {
    case kGlobal: {
      const std::string_view module = take_line();
      push_global(module, take_line());
      return true;
    }
    case kStackGlobal: {
      const Value* name = pop();
      const Value* module = pop();
      if (name->kind() != Kind::kString || module->kind() != Kind::kString)
        fail("a function is named by other than strings");
      push_global(module->text(), name->text());
      return true;
    }
    case kBinPersId:
      push_storage();
      return true;
    case kReduce:
    case kNewObj:
      push_call();
      return true;
    case kBuild:
      set_attributes();
      return true;
    default:
      return false;
  }
}

std::string_view Machine::take(uint64_t count) {
  if (count > bytes_.size() - at_) fail("it is cut off");
  at_ += count;
  return bytes_.substr(at_ - count, count);
}

std::string_view Machine::take_line() {
  const size_t end = bytes_.find('\n', at_);
  if (end == std::string_view::npos) fail("it is cut off");
  const std::string_view line = take(end - at_);
  at_ += 1;
  return line;
}

template <typename T>
T Machine::number() {
  T value;
  std::memcpy(&value, take(sizeof value).data(), sizeof value);
  return value;
}

int64_t Machine::long_number(uint64_t bytes) {
  if (bytes > sizeof(int64_t))
    fail(fmt::format("a whole number of {} bytes is more than the 8 that are read", bytes));
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
  if (marks_.empty()) fail("the beginning of a container is missing");
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
    fail(fmt::format("{} is where a list should be", to_string(list->kind())));
  auto& target = std::get<Items>(list->content_);
  target.insert(target.end(), items.begin(), items.end());
}

void Machine::set_items(const Items& items) {
  Value* dictionary = top();
  if (dictionary->kind() != Kind::kDict)
    fail(fmt::format("{} is where a dictionary should be", to_string(dictionary->kind())));
  if (items.size() % 2 != 0) fail("a dictionary's key has no value");
  for (size_t i = 0; i < items.size(); i += 2) {
    const Kind kind = items[i]->kind();
    if (kind != Kind::kString && kind != Kind::kInt)
      fail(fmt::format("{} is the key of a dictionary; strings and whole numbers are read",
                       to_string(kind)));
    if (kind == Kind::kString && items[i]->text().size() > kMaxKeyBytes)
      fail(fmt::format("the key of a dictionary has more than {} bytes", kMaxKeyBytes));
  }
  auto& target = std::get<Items>(dictionary->content_);
  target.insert(target.end(), items.begin(), items.end());
}

std::shared_ptr<const Value> read(std::string_view bytes, const std::string& file) {
  Machine machine(bytes, file);
  Value* root = machine.run();
  TreeCheck(file).check(root);
  return {machine.arena(), root};
}

}  // namespace coupler::pickle
