#include "common/error.h"

#include <stdarg.h>
#include <stdio.h>

db_status fail(db_error* error, db_status code, uint32_t flags, const char* format, ...) {
  va_list arguments;
  if (error == NULL) return code;
  if (DB_HAS(error, db_error, code)) error->code = code;
  if (DB_HAS(error, db_error, native_code)) error->native_code = 0;
  if (DB_HAS(error, db_error, failed_rank)) error->failed_rank = -1;
  if (DB_HAS(error, db_error, flags)) error->flags = flags;
  if (DB_HAS(error, db_error, message_capacity) && error->message != NULL &&
      error->message_capacity > 0) {
    va_start(arguments, format);
    vsnprintf(error->message, error->message_capacity, format, arguments);
    va_end(arguments);
  }
  return code;
}

void copy_text(char* to, uint64_t capacity, const char* text) {
  if (to != NULL && capacity > 0) snprintf(to, capacity, "%s", text);
}
