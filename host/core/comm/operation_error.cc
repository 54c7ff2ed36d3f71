#include "comm/operation_error.h"

#include <fmt/format.h>

namespace coupler {

ErrorCode code_of(db_status status) {
  switch (status) {
    case DB_ERR_INVALID_ARGUMENT:
      return ErrorCode::kInvalidArgument;
    case DB_ERR_UNSUPPORTED:
      return ErrorCode::kUnsupported;
    case DB_ERR_TIMEOUT:
      return ErrorCode::kTimeout;
    case DB_ERR_ABORTED:
      return ErrorCode::kAborted;
    case DB_ERR_PEER_LOST:
      return ErrorCode::kPeerLost;
    case DB_ERR_SYSTEM:
    case DB_ERR_NOT_FOUND:
      return ErrorCode::kIo;
    case DB_ERR_UNKNOWN_OPTION:
      return ErrorCode::kConfig;
    case DB_ERR_MISMATCH:
      return ErrorCode::kMismatch;
    default:
      return ErrorCode::kInternal;
  }
}

bool kills(db_status status, const db_error& error) {
  if ((error.flags & DB_ERROR_COMM_DEAD) != 0) return true;
  switch (status) {
    case DB_ERR_INVALID_ARGUMENT:
    case DB_ERR_UNSUPPORTED:
    case DB_ERR_NO_MEMORY:
      return false;  // nothing was started
    default:
      return true;
  }
}

std::string hint_for(ErrorCode code) {
  switch (code) {
    case ErrorCode::kTimeout:
      return "look at what the missing ranks do instead; raise backend.timeout if ranks may be "
             "this far apart";
    case ErrorCode::kPeerLost:
      return "look at the output of the lost rank; the survivors cannot continue without it";
    case ErrorCode::kMismatch:
      return "make every rank call the same operations with the same dtype and sizes in the same "
             "order";
    case ErrorCode::kUnsupported:
      return "choose another dtype or reduction, or another backend (coupler plugins lists them)";
    case ErrorCode::kInternal:
      return "report this with the output of coupler env";
    default:
      return {};
  }
}

Error make_error(db_status status, const ErrorBuffer& error, const std::string& context,
                 const std::string& backend) {
  const ErrorCode code = code_of(status);
  std::string text = error.text();
  if (text.empty()) {
    text = fmt::format("status {} without a message", status);
  }
  if (error.value().native_code != 0) text += fmt::format(" (code {})", error.value().native_code);
  return {code,
          fmt::format("{}: {}: {}", context, backend, text),
          {.rank = error.value().failed_rank, .subject = context, .hint = hint_for(code)}};
}

}  // namespace coupler
