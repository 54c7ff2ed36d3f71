// coupler::Error: the one exception type of the host. Immutable after construction, so any
// thread may read it. Its message says what was wrong, where, and what to do.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace coupler {

// What kind of fault an Error is; programs decide by it, people read the message.
enum class ErrorCode {
  kUsage,            // wrong command line or wrong call order (prepare twice)
  kConfig,           // TOML, environment or -o: unknown key, wrong type, contradiction
  kPlugin,           // a backend that cannot be found, loaded or used
  kInvalidArgument,  // a value given to an API function
  kUnsupported,      // a backend, device or dtype lacks the feature
  kMismatch,         // ranks disagree on operation, type, size or configuration
  kPeerLost,         // another rank died or cannot be reached
  kTimeout,          // a deadline passed
  kAborted,          // ended because of an earlier error or abort()
  kIo,               // files and sockets
  kPreempted,        // the job was told to end, and has saved its state
  kInternal,         // a bug of Coupler or of a backend
  kOutOfMemory,      // [memory] limit would be passed, or a device has no more
};

// "peer lost". Constant data, [any-thread].
std::string_view to_string(ErrorCode code);

// What an Error knows beside its message; every field is optional.
struct ErrorDetail {
  int rank = -1;        // the rank at fault
  std::string subject;  // the key, tensor, file or operation concerned
  std::string hint;     // what the user should do, one sentence
};

// What every function of the host throws.
class Error : public std::runtime_error {
 public:
  // message: what was wrong and where; the hint of detail is put behind it in what().
  Error(ErrorCode code, const std::string& message, ErrorDetail detail = {});

  // As given to the constructor.
  ErrorCode code() const { return code_; }
  const ErrorDetail& detail() const { return detail_; }

  // The process's documented exit code where the error ends it: 2 usage or configuration, 3 plugin
  // unusable, 4 peer lost, mismatch or timeout, 75 preempted, else 1.
  int exit_code() const;

 private:
  ErrorCode code_;
  ErrorDetail detail_;
};

// Makes an Error that nobody catches end the process with "coupler: error: …" on standard error and
// its exit_code() instead of an abort; other uncaught exceptions end it with their what() and 1.
// Installed by Accelerator and by the coupler program. [any-thread], idempotent.
void install_terminate_handler();

}  // namespace coupler
