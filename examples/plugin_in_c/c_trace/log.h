/* Logs one line per operation through the host. Every function is [any-thread]. */
#ifndef PLUGIN_IN_C_C_TRACE_LOG_H_
#define PLUGIN_IN_C_C_TRACE_LOG_H_

#include <coupler/distributed_backend.h>

/* Details of an operation in flight. */
typedef struct trace_entry {
  db_kind kind;
  db_dtype dtype;
  uint64_t count; /* the V kinds: the sum over all ranks */
  int64_t start_ns;
} trace_entry;

typedef struct trace_log {
  const db_host* host;
  db_severity severity;
} trace_log;

trace_entry trace_begin(const db_op* op, int32_t world_size);
void trace_end(const trace_log* log, const trace_entry* entry, const char* outcome);

const char* status_name(db_status status);
/* DB_LOG_* of a name, or -1. */
db_severity severity_of(const char* name);

#endif /* PLUGIN_IN_C_C_TRACE_LOG_H_ */
