// CallSite: the place in the user's program from which Coupler was called last, for messages about
// ranks that do not come. As the default argument of a function it is the place of the call; who
// forwards a call need not pass it on. Costs two stores. [any-thread]; the last call counts.
#pragma once

#include <string>

namespace coupler {

class CallSite {
 public:
  // Remembers it. file is a literal.
  CallSite(const char* file = __builtin_FILE(), int line = __builtin_LINE()) noexcept;

  static std::string last();  // "train.cc:42"; "": there was none
};

}  // namespace coupler
