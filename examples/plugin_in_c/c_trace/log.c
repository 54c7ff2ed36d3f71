#define _POSIX_C_SOURCE 200809L
#include "c_trace/log.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static const char* const kinds[] = {
    "operation 0",  "all_reduce",     "broadcast",        "reduce",     "all_gather",
    "all_gather_v", "reduce_scatter", "reduce_scatter_v", "all_to_all", "all_to_all_v",
    "gather",       "scatter",        "barrier",          "send",       "recv",
};
static const char* const dtypes[] = {
    "-",   "i8",  "u8",   "i16", "u16", "i32",  "u32",       "i64",
    "u64", "f16", "bf16", "f32", "f64", "bool", "f8_e4m3fn", "f8_e5m2",
};
static const char* const severities[] = {"trace", "debug", "info", "warning", "error"};

/* A newer host may have more kinds than this file. */
#define NAME_OF(names, number)                                                              \
  ((number) >= 0 && (size_t)(number) < sizeof(names) / sizeof((names)[0]) ? (names)[number] \
                                                                          : "unknown")

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static uint64_t total(const uint64_t* counts, int32_t world_size) {
  uint64_t sum = 0;
  int32_t rank;
  for (rank = 0; counts != NULL && rank < world_size; ++rank) sum += counts[rank];
  return sum;
}

trace_entry trace_begin(const db_op* op, int32_t world_size) {
  trace_entry entry = {op->kind, op->dtype, op->count, now_ns()};
  if (op->kind == DB_ALL_GATHER_V || op->kind == DB_REDUCE_SCATTER_V) {
    entry.count = total(op->recv_counts, world_size);
  } else if (op->kind == DB_ALL_TO_ALL_V) {
    entry.count = total(op->send_counts, world_size);
  }
  return entry;
}

void trace_end(const trace_log* log, const trace_entry* entry, const char* outcome) {
  char line[160];
  snprintf(line, sizeof(line), "%s %s x %llu: %s after %.1f us", NAME_OF(kinds, entry->kind),
           NAME_OF(dtypes, entry->dtype), (unsigned long long)entry->count, outcome,
           (double)(now_ns() - entry->start_ns) / 1000.0);
  log->host->log(log->host->context, log->severity, "c_trace", line);
}

const char* status_name(db_status status) {
  switch (status) {
    case DB_OK:
      return "ok";
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
    case DB_ERR_NO_MEMORY:
      return "no memory";
    case DB_ERR_SYSTEM:
      return "system error";
    case DB_ERR_INTERNAL:
      return "internal error";
    case DB_ERR_MISMATCH:
      return "mismatch";
    default:
      return "failed";
  }
}

db_severity severity_of(const char* name) {
  db_severity i;
  for (i = DB_LOG_TRACE; i <= DB_LOG_ERROR; ++i) {
    if (name != NULL && strcmp(severities[i], name) == 0) return i;
  }
  return -1;
}
