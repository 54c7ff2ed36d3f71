// Failure: an error held in the plugin's own memory, and its conversion to and from a db_error.
// Plain values; [any-thread].
#pragma once

#include <coupler/distributed_backend.h>

#include <array>
#include <cstdint>
#include <string>
#include <type_traits>
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
  static Failure invalid(std::string message) {
    return make(DB_ERR_INVALID_ARGUMENT, std::move(message));
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

// The exception that is being handled as an error; prefix is put before its text.
db_status report_exception(const char* prefix, db_error* error) noexcept;

// Runs body, which returns a Failure or a db_status; no exception crosses the ABI.
template <class Body>
db_status guarded(const char* prefix, db_error* error, const Body& body) noexcept {
  try {
    if constexpr (std::is_same_v<std::invoke_result_t<Body>, Failure>) {
      return report(body(), error);
    } else {
      return body();
    }
  } catch (...) {
    return report_exception(prefix, error);
  }
}

// A db_error to pass to a function of the host, and what it holds after a failure.
struct HostError {
  HostError();
  HostError(const HostError&) = delete;
  HostError& operator=(const HostError&) = delete;
  Failure failure(db_status status, const std::string& what) const;  // "WHAT: the host's message"

  std::array<char, 512> text{};
  db_error error{};
};

}  // namespace db
