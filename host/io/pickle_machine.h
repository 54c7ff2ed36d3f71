// The stack machine that a pickle is a program of, with the instructions that build values and none
// that would run anything. One for each pickle, single-threaded. Internal to the reader of pickles.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/pickle.h"
#include "io/pickle_globals.h"

static_assert(std::endian::native == std::endian::little, "pickles are little-endian");

namespace coupler::pickle {

// All that a pickle makes, also what its root does not lead to: values refer to each other in any
// way, and end together, without recursion.
struct Arena {
  std::deque<Value> values;
  std::deque<Storage> storages;
  std::deque<Tensor> tensors;
  std::deque<std::string> texts;  // those that are not in the pickle as they are
};

class Machine {
 public:
  Machine(std::string_view bytes, const std::string& file);

  // Runs the pickle to its end, once. The root is not checked yet: see TreeCheck.
  Value* run();
  std::shared_ptr<Arena> arena() const { return arena_; }

 private:
  using Items = Value::Items;

  [[noreturn]] void fail(const std::string& rule) const;
  [[noreturn]] void refuse(const std::string& what, const std::string& hint) const;

  // The instructions by what they are about; false where one is none of theirs.
  void step();
  bool step_literal(uint8_t opcode);
  bool step_container(uint8_t opcode);
  bool step_memo(uint8_t opcode);
  bool step_object(uint8_t opcode);

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
  void push_text(Kind kind, uint64_t bytes);
  void push_tuple(size_t count);
  void append(const Items& items);
  void set_items(const Items& items);

  // What stands in place of calling something: pickle_calls.cc.
  void push_global(std::string_view module, std::string_view name);
  void push_storage();    // the next of the archive's
  void push_call();       // a function and the tuple of its arguments
  void set_attributes();  // _metadata of an OrderedDict, which is left out
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
