// CallSite: the source line of the program's last call into Coupler, for messages about missing
// ranks. As a default argument it records the line of the call; a function that forwards a call
// need not pass it on. Costs two stores. [any-thread]; the last call wins.
#pragma once

#include <string>

namespace coupler {

class CallSite {
 public:
  // Records the call site. file must be a literal.
  CallSite(const char* file = __builtin_FILE(), int line = __builtin_LINE()) noexcept;

  static std::string last();  // "train.cc:42"; "" if there was none
};

}  // namespace coupler
