// Checks that are possible only after a pickle has been read to its end: no container holds itself,
// a walk from the root is neither deep nor long, and no dictionary has a key twice. Internal to the
// pickle reader.
#pragma once

#include <string>
#include <vector>

#include "formats/pickle.h"

namespace coupler::pickle {

class TreeCheck {
 public:
  explicit TreeCheck(const std::string& file) : file_(file) {}

  // Without recursion; visits each value once, however often it is referenced. Throws Error(kIo).
  void check(Value* root);

 private:
  struct Visit {
    Value* value;
    size_t next = 0;  // of its items
  };

  [[noreturn]] void fail(const std::string& rule) const;
  void enter(Value* value);
  void leave(Value* value);
  void check_keys(const Value& dictionary);

  const std::string& file_;
  std::vector<Visit> path_;
  std::vector<const Value*> keys_;
};

}  // namespace coupler::pickle
