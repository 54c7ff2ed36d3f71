// Failure: an error held in the plugin's own memory, and its conversion to a caller's db_error.
// Plain values; [any-thread].
#pragma once

#include <coupler/distributed_backend.h>

#include <cstdint>
#include <string>
#include <utility>

namespace db {

struct Failure {
  db_status status = DB_OK;
  int32_t native_code = 0;
  int32_t failed_rank = -1;
  uint32_t flags = 0;
  std::string message;

  static Failure make(db_status status, std::string message, uint32_t flags = 0,
                      int32_t failed_rank = -1, int32_t native_code = 0) {
    return {status, native_code, failed_rank, flags, std::move(message)};
  }
  bool ok() const { return status >= 0; }
  bool dead() const { return (flags & DB_ERROR_COMM_DEAD) != 0; }
};

// Copies failure into *error as far as the caller's struct and buffer allow (error may be NULL; a
// long message is cut at a character boundary) and returns failure.status.
db_status report(const Failure& failure, db_error* error);

// report() for an error that needs only a status and a message.
db_status report(db_status status, const std::string& message, db_error* error);

// Copies text into a caller's buffer of capacity bytes, cut at a UTF-8 boundary and
// zero-terminated unless capacity is 0.
void copy_text(char* buffer, uint64_t capacity, const char* text);

const char* status_name(db_status status);

}  // namespace db
