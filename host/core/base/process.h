// ProcessIdentity: identifies one process for good; a process id alone is reused. What this process
// knows of itself, and where programs are. Plain values and functions, [any-thread].
#pragma once

#include <cstdint>
#include <string>

namespace coupler {

struct ProcessIdentity {
  long pid = 0;
  std::string started;  // clock ticks since boot
};

// What /proc/PID/stat reports; all empty if there is no such process.
struct ProcessStatus {
  std::string name = {};
  char state = 0;  // 'R', 'S', 'T' stopped, 't' traced, 'Z' ended …
  long parent = 0;
  std::string started = {};
};
ProcessStatus status_of(long pid);

ProcessIdentity own_identity();
// Of a process that runs now, on this machine; started is empty if there is none.
ProcessIdentity identity_of(long pid);

// Whether that very process runs now (one that has ended but is not reaped yet counts).
bool is_alive(const ProcessIdentity& process);

// Its state; 0: gone.
char state_of(const ProcessIdentity& process);

// Equal for processes that see each other's process ids: the machine's boot id and the PID
// namespace.
std::string machine_identity();

// This process's resident memory in bytes; 0 if /proc does not report it.
uint64_t resident_bytes();

// Blocks every signal in the calling thread: the program's own threads handle them.
void block_signals();

// An environment variable's value; "" if it is not set. [any-thread] while no thread sets any.
std::string environment_value(const char* name);

// Whether it is a file that this user may execute.
bool is_program(const std::string& path);

// The first executable file of that name in PATH; "" if there is none.
std::string find_in_path(const std::string& program);

}  // namespace coupler
