/* Writes strings and errors into the caller's memory. Every function is [any-thread]. */
#ifndef PLUGIN_IN_C_COMMON_ERROR_H_
#define PLUGIN_IN_C_COMMON_ERROR_H_

#include <coupler/distributed_backend.h>

/* Fills in *error (which may be NULL, or shorter than ours) and returns code. */
db_status fail(db_error* error, db_status code, uint32_t flags, const char* format, ...)
    __attribute__((format(printf, 4, 5)));

/* Copies text, truncated to capacity and zero-terminated. */
void copy_text(char* to, uint64_t capacity, const char* text);

#endif /* PLUGIN_IN_C_COMMON_ERROR_H_ */
