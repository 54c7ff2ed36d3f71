// Error: the only exception type of the host. Immutable after construction, so any thread may read
// it. Its message says what was wrong, where, and what to do. CallSite records the calls that
// messages name.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace coupler {

// The kind of an Error, for programs to branch on; the message is for people.
enum class ErrorCode {
  kUsage,            // wrong command line or wrong call order (prepare twice)
  kConfig,           // TOML, environment or -o: unknown key, wrong type, contradiction
  kPlugin,           // a backend cannot be found, loaded or used
  kInvalidArgument,  // an invalid value was passed to an API function
  kUnsupported,      // a backend, device or dtype lacks the feature
  kMismatch,         // ranks disagree on operation, type, size or configuration
  kPeerLost,         // another rank died or cannot be reached
  kTimeout,          // a deadline passed
  kAborted,          // ended because of an earlier error or abort()
  kIo,               // files and sockets
  kPreempted,        // the job was asked to end, and has saved its state
  kInternal,         // a bug in Coupler or a backend
  kOutOfMemory,      // [memory] limit would be exceeded, or a device is out of memory
};

// The name of a code, such as "peer lost". Constant data, [any-thread].
std::string_view to_string(ErrorCode code);

// Details of an Error in addition to its message; every field is optional.
struct ErrorDetail {
  int rank = -1;        // the rank at fault
  std::string subject;  // the key, tensor, file or operation concerned
  std::string hint;     // what the user should do, one sentence
};

// The exception thrown by every function of the host.
class Error : public std::runtime_error {
 public:
  // message: what was wrong and where; what() appends the hint of detail.
  Error(ErrorCode code, const std::string& message, ErrorDetail detail = {});

  // As given to the constructor.
  ErrorCode code() const { return code_; }
  const ErrorDetail& detail() const { return detail_; }

  // The documented exit code of a process ended by this error: 2 usage or configuration, 3 plugin
  // unusable, 4 peer lost, mismatch or timeout, 75 preempted, otherwise 1.
  int exit_code() const;

 private:
  ErrorCode code_;
  ErrorDetail detail_;
};

// Makes an uncaught Error end the process with "coupler: error: …" on standard error and its
// exit_code() instead of an abort; other uncaught exceptions end it with their what() and exit code
// 1. Installed by Accelerator and by the coupler program. [any-thread], idempotent.
void install_terminate_handler();

// CallSite: the source line of the program's last call into Coupler, for messages about missing
// ranks. As a default argument it records the line of the call; a function that forwards a call
// need not pass it on. Costs two stores. [any-thread]; the last call wins.
class CallSite {
 public:
  // Records the call site. file must be a literal.
  CallSite(const char* file = __builtin_FILE(), int line = __builtin_LINE()) noexcept;

  static std::string last();  // "train.cc:42"; "" if there was none
};

}  // namespace coupler
