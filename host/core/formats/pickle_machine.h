// The stack machine that runs a pickle. It has the opcodes that build values and none that execute
// code. One per pickle, single-threaded. Internal to the pickle reader.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "formats/pickle.h"
#include "formats/pickle_tree.h"

static_assert(std::endian::native == std::endian::little, "pickles are little-endian");

namespace coupler::pickle {

// Owns all values of a pickle, even those not reachable from its root: values may refer to each
// other in any way, and are destroyed together, without recursion.
struct Arena {
  std::deque<Value> values;
  std::deque<Storage> storages;
  std::deque<Tensor> tensors;
  std::deque<std::string> texts;  // strings that do not occur in the pickle itself
};

class Machine {
 public:
  Machine(std::string_view bytes, const std::string& file);

  // Runs the pickle to its end; call once. The root is not checked yet: see TreeCheck.
  Value* run();
  std::shared_ptr<Arena> arena() const { return arena_; }

 private:
  using Items = Value::Items;

  [[noreturn]] void fail(const std::string& rule) const;
  [[noreturn]] void refuse(const std::string& what, const std::string& hint) const;

  void step();  // executes one opcode

  // The pickle's next bytes.
  std::string_view take(uint64_t count);
  std::string_view take_line();
  template <typename T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  int64_t long_number(uint64_t bytes);

  // The stack. No instruction reaches below the last open mark.
  Value* make(Kind kind, Value::Content content);
  void push(Value* value);
  Value* pop();
  Value* top() const;
  Items pop_to_mark();
  void push_integer(int64_t value) { push(make(Kind::kInt, value)); }
  void push_text(Kind kind, uint64_t bytes);
  void push_tuple(size_t count);
  void append(const Items& items);
  void set_items(const Items& items);
  void remember(uint64_t index);  // the top, as an entry of the memo
  void recall(uint64_t index);    // pushes that entry

  // Replacements for function calls: pickle_machine.cc.
  void push_global(std::string_view module, std::string_view name);
  void push_storage();    // a reference to an entry of the archive
  void push_call();       // a function and the tuple of its arguments
  void set_attributes();  // _metadata of an OrderedDict, which is dropped
  Value* make_ordered(const Items& arguments);
  Value* make_tensor(const Items& arguments, bool of_type);
  Value* make_parameter(const Items& arguments, bool with_state);
  Value* make_size(const Items& arguments);
  Value* make_device(const Items& arguments);
  Value* make_set(const Items& arguments);
  void want(bool right, std::string_view what) const;

  std::string_view bytes_;
  const std::string& file_;
  size_t at_ = 0;
  size_t opcode_at_ = 0;
  bool stopped_ = false;
  std::shared_ptr<Arena> arena_;
  Value* none_;
  Value* true_;
  Value* false_;
  Items stack_;
  std::vector<size_t> marks_;
  Items memo_;
};

}  // namespace coupler::pickle
