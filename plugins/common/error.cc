#include "common/error.h"

#include <cstring>

namespace db {

void copy_text(char* buffer, uint64_t capacity, const char* text) {
  if (buffer == nullptr || capacity == 0) return;
  size_t length = std::strlen(text);
  if (length >= capacity) {
    length = static_cast<size_t>(capacity - 1);
    // Never cut inside a UTF-8 sequence: step back over continuation bytes.
    while (length > 0 && (static_cast<unsigned char>(text[length]) & 0xC0u) == 0x80u) --length;
  }
  std::memcpy(buffer, text, length);
  buffer[length] = '\0';
}

db_status report(const Failure& failure, db_error* error) {
  if (failure.status >= 0 || error == nullptr) return failure.status;
  if (DB_HAS(error, db_error, code)) error->code = failure.status;
  if (DB_HAS(error, db_error, native_code)) error->native_code = failure.native_code;
  if (DB_HAS(error, db_error, failed_rank)) error->failed_rank = failure.failed_rank;
  if (DB_HAS(error, db_error, flags)) error->flags = failure.flags;
  if (DB_HAS(error, db_error, message_capacity))
    copy_text(error->message, error->message_capacity, failure.message.c_str());
  return failure.status;
}

db_status report(db_status status, const std::string& message, db_error* error) {
  return report(Failure::make(status, message), error);
}

const char* status_name(db_status status) {
  switch (status) {
    case DB_OK:
      return "ok";
    case DB_IN_PROGRESS:
      return "in progress";
    case DB_ERR_INVALID_ARGUMENT:
      return "invalid argument";
    case DB_ERR_UNSUPPORTED:
      return "unsupported";
    case DB_ERR_TIMEOUT:
      return "timeout";
    case DB_ERR_ABORTED:
      return "aborted";
    case DB_ERR_PEER_LOST:
      return "peer lost";
    case DB_ERR_NOT_FOUND:
      return "not found";
    case DB_ERR_NO_MEMORY:
      return "out of memory";
    case DB_ERR_SYSTEM:
      return "system error";
    case DB_ERR_INTERNAL:
      return "internal error";
    case DB_ERR_UNKNOWN_OPTION:
      return "unknown option";
    case DB_ERR_BUFFER_TOO_SMALL:
      return "buffer too small";
    case DB_ERR_MISMATCH:
      return "mismatch";
    default:
      return "unknown status";
  }
}

}  // namespace db
