#include <coupler/error.h>

#include <utility>

#include "base/message.h"

namespace coupler {
namespace {

std::string with_hint(const std::string& message, const std::string& hint) {
  return hint.empty() ? message : message + std::string(kHintMark) + hint;
}

}  // namespace

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kUsage:
      return "usage";
    case ErrorCode::kConfig:
      return "configuration";
    case ErrorCode::kPlugin:
      return "plugin";
    case ErrorCode::kInvalidArgument:
      return "invalid argument";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kMismatch:
      return "mismatch";
    case ErrorCode::kPeerLost:
      return "peer lost";
    case ErrorCode::kTimeout:
      return "timeout";
    case ErrorCode::kAborted:
      return "aborted";
    case ErrorCode::kIo:
      return "input/output";
    case ErrorCode::kPreempted:
      return "preempted";
    case ErrorCode::kInternal:
      return "internal";
    case ErrorCode::kOutOfMemory:
      return "out of memory";
  }
  return "unknown";
}

Error::Error(ErrorCode code, const std::string& message, ErrorDetail detail)
    : std::runtime_error(with_hint(message, detail.hint)),
      code_(code),
      detail_(std::move(detail)) {}

int Error::exit_code() const {
  switch (code_) {
    case ErrorCode::kUsage:
    case ErrorCode::kConfig:
      return 2;
    case ErrorCode::kPlugin:
      return 3;
    case ErrorCode::kMismatch:
    case ErrorCode::kPeerLost:
    case ErrorCode::kTimeout:
      return 4;
    case ErrorCode::kPreempted:
      return 75;
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnsupported:
    case ErrorCode::kAborted:
    case ErrorCode::kIo:
    case ErrorCode::kInternal:
    case ErrorCode::kOutOfMemory:
      return 1;
  }
  return 1;
}

}  // namespace coupler
