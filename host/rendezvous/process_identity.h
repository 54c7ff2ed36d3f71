// ProcessIdentity: names one process for good, where a process id alone is used again. Plain values
// and functions, [any-thread].
#pragma once

#include <string>

namespace coupler {

struct ProcessIdentity {
  long pid = 0;
  std::string started;  // clock ticks since boot
};

ProcessIdentity own_identity();

// Whether that very process runs now (one that ended and was not reaped yet counts).
bool is_alive(const ProcessIdentity& process);

}  // namespace coupler
