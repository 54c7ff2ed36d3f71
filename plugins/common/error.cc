#include "common/error.h"

#include <cstring>
#include <exception>
#include <new>
#include <system_error>

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

db_status report_exception(const char* prefix, db_error* error) noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return report(DB_ERR_NO_MEMORY, std::string(prefix) + "out of memory", error);
  } catch (const std::system_error& e) {
    return report(
        Failure::make(DB_ERR_SYSTEM, prefix + std::string(e.what()), 0, -1, e.code().value()),
        error);
  } catch (const std::exception& e) {
    return report(DB_ERR_INTERNAL, prefix + std::string(e.what()), error);
  } catch (...) {
    return report(DB_ERR_INTERNAL, std::string(prefix) + "an unknown exception", error);
  }
}

HostError::HostError() {
  error.struct_size = sizeof error;
  error.failed_rank = -1;
  error.message = text.data();
  error.message_capacity = text.size();
}

Failure HostError::failure(db_status status, const std::string& what) const {
  return Failure::make(status, what + ": " + text.data(), 0, error.failed_rank, error.native_code);
}

}  // namespace db
