// Status: a status code with a message, returned by the plugin's functions.
// Exceptions never leave the plugin, because its callers may be C. Pure
// functions; any thread.
#pragma once

#include <coupler/distributed_backend.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <new>
#include <string>
#include <string_view>

namespace plugin {

struct Status {
  db_status code = DB_OK;
  std::string words = {};
  uint32_t flags = 0;  // DB_ERROR_COMM_DEAD, DB_ERROR_RETRYABLE
};

inline void copy_text(char *to, uint64_t capacity, std::string_view text) {
  if (to == nullptr || capacity == 0) return;
  const size_t size = std::min<size_t>(text.size(), capacity - 1);
  std::copy_n(text.data(), size, to);
  to[size] = '\0';
}

// Writes into the caller's memory. The host may be older, so DB_HAS checks for
// each field.
inline db_status tell(const Status &status, db_error *error) {
  if (status.code >= DB_OK || error == nullptr) return status.code;
  if (DB_HAS(error, db_error, code)) error->code = status.code;
  if (DB_HAS(error, db_error, native_code)) error->native_code = 0;
  if (DB_HAS(error, db_error, failed_rank)) error->failed_rank = -1;
  if (DB_HAS(error, db_error, flags)) error->flags = status.flags;
  if (DB_HAS(error, db_error, message_capacity))
    copy_text(error->message, error->message_capacity, status.words);
  return status.code;
}

// Runs an action and converts exceptions to a status.
template <class Action>
db_status guarded(db_error *error, const Action &action) noexcept {
  try {
    return tell(action(), error);
  } catch (const std::bad_alloc &) {
    return tell({DB_ERR_NO_MEMORY, "out of memory"}, error);
  } catch (const std::exception &thrown) {
    try {
      return tell({DB_ERR_INTERNAL, thrown.what(), DB_ERROR_COMM_DEAD}, error);
    } catch (...) {
      return DB_ERR_INTERNAL;
    }
  }
}

}  // namespace plugin
