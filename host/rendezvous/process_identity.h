// ProcessIdentity: names one process for good, where a process id alone is used again. Plain values
// and functions, [any-thread].
#pragma once

#include <string>

namespace coupler {

struct ProcessIdentity {
  long pid = 0;
  std::string started;  // clock ticks since boot
};

// What /proc/PID/stat says; all empty where there is no such process.
struct ProcessStatus {
  std::string name = {};
  char state = 0;  // 'R', 'S', 'T' stopped, 't' traced, 'Z' ended …
  long parent = 0;
  std::string started = {};
};
ProcessStatus status_of(long pid);

ProcessIdentity own_identity();
// Of a process that runs now, on this machine; started is empty where there is none.
ProcessIdentity identity_of(long pid);

// Whether that very process runs now (one that ended and was not reaped yet counts).
bool is_alive(const ProcessIdentity& process);

// Its state; 0: gone.
char state_of(const ProcessIdentity& process);

// Equal for processes that see each other's process ids: the machine since its start, and the
// namespace of process ids.
std::string machine_identity();

}  // namespace coupler
