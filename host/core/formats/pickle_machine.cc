#include "formats/pickle_machine.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <cstring>
#include <limits>
#include <utility>

#include "base/text.h"

namespace coupler::pickle {

// How the machine handles a call in a pickle: it checks the function's name and the arguments'
// kinds, and creates the value that PyTorch would.

namespace {

constexpr uint64_t kMaxNameBytes = 64;  // of storages and devices

bool is_index(const Value* value) { return value->kind() == Kind::kInt && value->integer() >= 0; }

bool is_short_text(const Value* value) {
  return value->kind() == Kind::kString && value->text().size() <= kMaxNameBytes;
}

// Shapes and strides. Only as many items as are used get checked: the same long tuple may be an
// argument of many calls.
bool is_indices(const Value* value) {
  if (value->kind() != Kind::kTuple || value->items().size() > kMaxRank) return false;
  for (const Value* item : value->items())
    if (!is_index(item)) return false;
  return true;
}

std::vector<int64_t> indices(const Value* value) {
  std::vector<int64_t> result;
  result.reserve(value->items().size());
  for (const Value* item : value->items()) result.push_back(item->integer());
  return result;
}

// None or an empty dictionary: set bits here would mean that the bytes are not the values.
bool is_nothing(const Value* value) {
  return value->kind() == Kind::kNone || (value->kind() == Kind::kDict && value->items().empty());
}

}  // namespace

void Machine::want(bool right, std::string_view what) const {
  if (!right) fail(fmt::format("{} has arguments that torch.save never writes", what));
}

void Machine::push_global(std::string_view module, std::string_view name) {
  const Global* global = find_global(module, name);
  if (global == nullptr)
    refuse(fmt::format("the global '{}.{}' is not allowed: only tensors, containers and numbers "
                       "are supported",
                       for_message(module), for_message(name)),
           "if you trust the file's author, load it with PyTorch and save only its "
           "state_dict()");
  push(make(Kind::kGlobal, global));
}

// ('storage', type, key, device, number of elements)
void Machine::push_storage() {
  constexpr std::string_view kWhat = "a reference to a storage";
  const Value* reference = pop();
  want(reference->kind() == Kind::kTuple && reference->items().size() == 5, kWhat);
  const auto parts = reference->items();
  want(parts[0]->kind() == Kind::kString && parts[0]->text() == "storage", kWhat);
  want(parts[1]->kind() == Kind::kGlobal, kWhat);
  const Global& type = *std::get<const Global*>(parts[1]->content_);
  want(type.role == Role::kStorageType, kWhat);
  want(is_short_text(parts[2]) && is_short_text(parts[3]) && is_index(parts[4]), kWhat);

  uint64_t bytes = type.type == nullptr ? 1 : type.type->bytes;
  if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(parts[4]->integer()), &bytes) ||
      bytes > std::numeric_limits<int64_t>::max())
    fail(fmt::format("a storage cannot have {} elements", parts[4]->integer()));
  const Storage& storage =
      arena_->storages.emplace_back(Storage{parts[2]->text(), parts[3]->text(), type.type, bytes});
  push(make(Kind::kStorage, &storage));
}

void Machine::push_call() {
  const Value* arguments = pop();
  const Value* function = pop();
  if (function->kind() != Kind::kGlobal)
    fail(fmt::format("{} is called like a function", to_string(function->kind())));
  const Global& global = *std::get<const Global*>(function->content_);
  want(arguments->kind() == Kind::kTuple, global.name);
  const Items& items = std::get<Items>(arguments->content_);
  switch (global.role) {
    case Role::kOrderedDict:
      return push(make_ordered(items));
    case Role::kTensor:
      return push(make_tensor(items, false));
    case Role::kTensorOfType:
      return push(make_tensor(items, true));
    case Role::kParameter:
      return push(make_parameter(items, false));
    case Role::kParameterWithState:
      return push(make_parameter(items, true));
    case Role::kSize:
      return push(make_size(items));
    case Role::kDevice:
      return push(make_device(items));
    case Role::kSet:
      return push(make_set(items));
    case Role::kStorageType:
    case Role::kElementType:
      break;
  }
  fail(fmt::format("{} is called like a function", global.name));
}

void Machine::set_attributes() {
  const Value* state = pop();
  if (!top()->ordered_)
    fail(fmt::format("{} has attributes, which only an OrderedDict may", to_string(top()->kind())));
  const bool metadata = state->kind() == Kind::kDict && state->items().size() == 2 &&
                        state->items()[0]->kind() == Kind::kString &&
                        state->items()[0]->text() == "_metadata";
  if (!metadata) fail("an OrderedDict has attributes other than '_metadata'");
}

Value* Machine::make_ordered(const Items& arguments) {
  want(arguments.empty(), "collections.OrderedDict");
  Value* dictionary = make(Kind::kDict, Items{});
  dictionary->ordered_ = true;
  return dictionary;
}

// (storage, offset, shape, strides, requires_grad, hooks[, type][, bits])
Value* Machine::make_tensor(const Items& arguments, bool of_type) {
  constexpr std::string_view kWhat = "a tensor";
  const size_t least = of_type ? 7 : 6;
  want(arguments.size() == least || arguments.size() == least + 1, kWhat);
  want(arguments[0]->kind() == Kind::kStorage && is_index(arguments[1]) &&
           is_indices(arguments[2]) && is_indices(arguments[3]) &&
           arguments[2]->items().size() == arguments[3]->items().size() &&
           arguments[4]->kind() == Kind::kBool && arguments[5]->kind() == Kind::kDict,
       kWhat);
  const Storage& storage = arguments[0]->storage();
  const ElementType* type = storage.type;
  if (of_type) {
    want(type == nullptr && arguments[6]->kind() == Kind::kGlobal, kWhat);
    const Global& global = *std::get<const Global*>(arguments[6]->content_);
    want(global.role == Role::kElementType, kWhat);
    type = global.type;
  }
  want(type != nullptr, kWhat);
  if (arguments.size() > least && !is_nothing(arguments.back()))
    fail(
        "a tensor is marked as the conjugate or negative of its bytes; call resolve_conj() and "
        "resolve_neg() before saving");
  if (arena_->tensors.size() >= kMaxTensors)
    fail(fmt::format("it holds more than {} tensors", kMaxTensors));
  const Tensor& tensor = arena_->tensors.emplace_back(
      Tensor{&storage, type, static_cast<uint64_t>(arguments[1]->integer()), indices(arguments[2]),
             indices(arguments[3])});
  return make(Kind::kTensor, &tensor);
}

// (tensor, requires_grad, hooks[, attributes]): only the tensor is kept.
Value* Machine::make_parameter(const Items& arguments, bool with_state) {
  want(arguments.size() == (with_state ? 4 : 3) && arguments[0]->kind() == Kind::kTensor &&
           arguments[1]->kind() == Kind::kBool && arguments[2]->kind() == Kind::kDict,
       "a parameter");
  return arguments[0];
}

Value* Machine::make_size(const Items& arguments) {
  want(arguments.size() == 1 && is_indices(arguments[0]), "torch.Size");
  return arguments[0];
}

// (list of its members), or nothing. The list itself is the value: a copy for every set in a pickle
// would make the reader's memory grow quadratically.
Value* Machine::make_set(const Items& arguments) {
  if (arguments.empty()) return make(Kind::kList, Items{});
  want(arguments.size() == 1 && arguments[0]->kind() == Kind::kList, "a set");
  return arguments[0];
}

// A device type and index: "cuda:1".
Value* Machine::make_device(const Items& arguments) {
  constexpr std::string_view kWhat = "torch.device";
  want((arguments.size() == 1 || arguments.size() == 2) && is_short_text(arguments[0]), kWhat);
  if (arguments.size() == 1) return arguments[0];
  want(is_index(arguments[1]), kWhat);
  const std::string& text = arena_->texts.emplace_back(
      fmt::format("{}:{}", arguments[0]->text(), arguments[1]->integer()));
  return make(Kind::kString, std::string_view(text));
}

// The machine's basics: a pickle's bytes, the stack, and the containers that opcodes fill.

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

void Machine::remember(uint64_t index) {
  if (index > memo_.size()) fail(fmt::format("it stores memo entry {} out of order", index));
  if (index == memo_.size()) memo_.push_back(nullptr);
  memo_[index] = top();
}

void Machine::recall(uint64_t index) {
  if (index >= memo_.size()) fail(fmt::format("memo entry {} does not exist", index));
  push(memo_[index]);
}

}  // namespace coupler::pickle
