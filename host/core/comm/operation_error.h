// Turns a backend's db_error into coupler::Error. ErrorBuffer is the memory the backend writes to;
// it belongs to one call.
#pragma once

#include <coupler/distributed_backend.h>
#include <coupler/error.h>

#include <array>
#include <string>

namespace coupler {

// Cheap to construct, a few stores: the text is not cleared.
class ErrorBuffer {
 public:
  ErrorBuffer() {
    text_[0] = 0;
    error_ = {.struct_size = sizeof(db_error),
              .code = DB_OK,
              .native_code = 0,
              .failed_rank = -1,
              .flags = 0,
              .message = text_,
              .message_capacity = sizeof(text_)};
  }
  ErrorBuffer(const ErrorBuffer&) = delete;
  ErrorBuffer& operator=(const ErrorBuffer&) = delete;

  db_error* get() { return &error_; }
  const db_error& value() const { return error_; }
  std::string text() const { return text_; }

 private:
  char text_[1024];
  db_error error_;
};

ErrorCode code_of(db_status status);
// Whether the communicator is unusable after this.
bool kills(db_status status, const db_error& error);
// context: "communicator 'world', operation 3: rank 0 in barrier".
Error make_error(db_status status, const ErrorBuffer& error, const std::string& context,
                 const std::string& backend);
// What a user should do about an error of that kind, one sentence.
std::string hint_for(ErrorCode code);

}  // namespace coupler
