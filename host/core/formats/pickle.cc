#include "formats/pickle.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <array>
#include <bit>
#include <utility>

#include "formats/pickle_machine.h"
#include "formats/pickle_tree.h"

namespace coupler::pickle {
namespace {

// The opcodes, named as in Python's pickletools.
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
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kFrozenSet = 0x91,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
};

}  // namespace

Value* Machine::run() {
  if (bytes_.size() > kMaxBytes)
    fail(fmt::format("its {} bytes exceed the limit of {}", bytes_.size(), kMaxBytes));
  if (number<uint8_t>() != kProto) fail("it does not begin with a protocol number");
  if (const auto protocol = number<uint8_t>(); protocol < 2 || protocol > 5)
    fail(fmt::format("it uses protocol {}; only 2 to 5 are supported", protocol));
  while (!stopped_) {
    opcode_at_ = at_;
    step();
  }
  if (at_ != bytes_.size()) fail("bytes follow the pickle's end");
  Value* root = pop();
  if (!stack_.empty() || !marks_.empty()) fail("it ends with unused values");
  return root;
}

void Machine::step() {
  switch (const auto opcode = number<uint8_t>()) {
    case kStop:
      stopped_ = true;
      return;
    case kFrame:
      if (number<uint64_t>() > bytes_.size() - at_) fail("a frame reaches past the pickle's end");
      return;

    case kNone:
      return push(none_);
    case kNewTrue:
      return push(true_);
    case kNewFalse:
      return push(false_);
    case kBinInt:
      return push_integer(number<int32_t>());
    case kBinInt1:
      return push_integer(number<uint8_t>());
    case kBinInt2:
      return push_integer(number<uint16_t>());
    case kLong1:
      return push_integer(long_number(number<uint8_t>()));
    case kLong4:
      return push_integer(long_number(number<uint32_t>()));
    case kBinFloat:  // the only big-endian number
      return push(
          make(Kind::kDouble, std::bit_cast<double>(__builtin_bswap64(number<uint64_t>()))));
    case kShortBinUnicode:
      return push_text(Kind::kString, number<uint8_t>());
    case kBinUnicode:
      return push_text(Kind::kString, number<uint32_t>());
    case kBinUnicode8:
      return push_text(Kind::kString, number<uint64_t>());
    case kShortBinBytes:
      return push_text(Kind::kBytes, number<uint8_t>());
    case kBinBytes:
      return push_text(Kind::kBytes, number<uint32_t>());
    case kBinBytes8:
      return push_text(Kind::kBytes, number<uint64_t>());

    case kMark:
      if (marks_.size() == kMaxDepth)
        fail(fmt::format("it nests deeper than {} levels", kMaxDepth));
      marks_.push_back(stack_.size());
      return;
    case kEmptyList:
    case kEmptySet:
      return push(make(Kind::kList, Items{}));
    case kEmptyTuple:
      return push_tuple(0);
    case kEmptyDict:
      return push(make(Kind::kDict, Items{}));
    case kTuple:
      return push(make(Kind::kTuple, pop_to_mark()));
    case kTuple1:
    case kTuple2:
    case kTuple3:
      return push_tuple(opcode - kTuple1 + 1u);
    case kFrozenSet:
      return push(make(Kind::kList, pop_to_mark()));
    case kAppend:
      return append({pop()});
    case kAppends:
    case kAddItems:
      return append(pop_to_mark());
    case kSetItem: {
      Value* value = pop();
      Value* key = pop();
      return set_items({key, value});
    }
    case kSetItems:
      return set_items(pop_to_mark());

    case kBinPut:
      return remember(number<uint8_t>());
    case kLongBinPut:
      return remember(number<uint32_t>());
    case kMemoize:
      return remember(memo_.size());
    case kBinGet:
      return recall(number<uint8_t>());
    case kLongBinGet:
      return recall(number<uint32_t>());

    case kGlobal: {
      const std::string_view module = take_line();
      return push_global(module, take_line());
    }
    case kStackGlobal: {
      const Value* name = pop();
      const Value* module = pop();
      if (name->kind() != Kind::kString || module->kind() != Kind::kString)
        fail("a function's name is not a string");
      return push_global(module->text(), name->text());
    }
    case kBinPersId:
      return push_storage();
    case kReduce:
    case kNewObj:
      return push_call();
    case kBuild:
      return set_attributes();

    default:
      fail(
          fmt::format("opcode 0x{:02x} is not supported: tensors, containers and numbers do not "
                      "need it",
                      opcode));
  }
}

std::shared_ptr<const Value> read(std::string_view bytes, const std::string& file) {
  Machine machine(bytes, file);
  Value* root = machine.run();
  TreeCheck(file).check(root);
  return {machine.arena(), root};
}

namespace {

constexpr std::array<std::string_view, 12> kKinds{
    "None",   "a boolean", "an integer",   "a number", "a string",  "bytes",
    "a list", "a tuple",   "a dictionary", "a type",   "a storage", "a tensor"};

[[noreturn]] void mismatch(Kind kind, std::string_view wanted) {
  throw Error(ErrorCode::kIo, fmt::format("{} where {} is expected", to_string(kind), wanted),
              {.subject = {}, .hint = "check that the file is of the expected kind"});
}

}  // namespace

std::string_view to_string(Kind kind) { return kKinds[static_cast<size_t>(kind)]; }

bool Value::boolean() const {
  if (kind_ != Kind::kBool) mismatch(kind_, to_string(Kind::kBool));
  return std::get<bool>(content_);
}

int64_t Value::integer() const {
  if (kind_ != Kind::kInt) mismatch(kind_, to_string(Kind::kInt));
  return std::get<int64_t>(content_);
}

double Value::real() const {
  if (kind_ == Kind::kInt) return static_cast<double>(std::get<int64_t>(content_));
  if (kind_ != Kind::kDouble) mismatch(kind_, to_string(Kind::kDouble));
  return std::get<double>(content_);
}

std::string_view Value::text() const {
  if (kind_ == Kind::kGlobal) return std::get<const Global*>(content_)->name;
  if (kind_ != Kind::kString && kind_ != Kind::kBytes) mismatch(kind_, to_string(Kind::kString));
  return std::get<std::string_view>(content_);
}

const Storage& Value::storage() const {
  if (kind_ != Kind::kStorage) mismatch(kind_, to_string(Kind::kStorage));
  return *std::get<const Storage*>(content_);
}

const Tensor& Value::tensor() const {
  if (kind_ != Kind::kTensor) mismatch(kind_, to_string(Kind::kTensor));
  return *std::get<const Tensor*>(content_);
}

std::span<const Value* const> Value::items() const {
  const auto* items = std::get_if<Items>(&content_);
  if (items == nullptr) mismatch(kind_, "a list, tuple or dictionary");
  return {items->data(), items->size()};
}

const Value* Value::find(std::string_view key) const {
  if (kind_ != Kind::kDict) mismatch(kind_, to_string(Kind::kDict));
  const auto all = items();
  for (size_t i = 0; i < all.size(); i += 2)
    if (all[i]->kind() == Kind::kString && all[i]->text() == key) return all[i + 1];
  return nullptr;
}

}  // namespace coupler::pickle
