// One operation. The ABI's enumerations: sizes and names of data types, reductions and kinds, and
// which reduction is defined for which type. And Op: one db_op after validation, with everything a
// transport needs. Plain values and pure functions; [any-thread].
#pragma once

#include <coupler/distributed_backend.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/error.h"

namespace db {

uint64_t dtype_size(db_dtype dtype);        // bytes; 0 for an invalid type
const char* dtype_name(db_dtype dtype);     // "f32"; "dtype?" for an invalid type
const char* reduce_name(db_reduce reduce);  // "sum"
const char* kind_name(db_kind kind);        // "all_reduce"
bool is_valid_kind(db_kind kind);
bool is_reducing(db_kind kind);        // ALL_REDUCE, REDUCE, REDUCE_SCATTER(_V)
bool is_rooted(db_kind kind);          // BROADCAST, REDUCE, GATHER, SCATTER
bool is_point_to_point(db_kind kind);  // SEND, RECV
bool is_floating(db_dtype dtype);      // f16, bf16, f32, f64 (fp8 types have no arithmetic)

// Whether the ABI defines reduce for dtype (never for fp8 types).
bool is_reducible(db_dtype dtype, db_reduce reduce);

// The supports() score, 1 or 0, of a host-memory transport that implements every operation.
int32_t host_supports(const db_op& op);

// One db_op after validation: byte counts, offsets of the V kinds, whether it is in-place, an
// absolute deadline. The count arrays are borrowed from the caller until keep_counts() copies them.
struct Op {
  db_kind kind = 0;
  db_dtype dtype = 0;
  db_reduce reduce = 0;
  int32_t root_or_peer = 0;
  const void* send = nullptr;
  void* recv = nullptr;
  uint64_t count = 0;  // 0 for the V kinds
  const uint64_t* send_counts = nullptr;
  const uint64_t* recv_counts = nullptr;
  int32_t tag = 0;
  bool blocking = false;    // DB_OP_BLOCKING
  bool in_place = false;    // as the ABI defines it for this kind, on this rank
  uint64_t element = 0;     // bytes of one element; 0 for BARRIER
  uint64_t send_size = 0;   // elements this rank sends from `send`; 0: it does not read `send`
  uint64_t recv_size = 0;   // elements this rank receives into `recv`
  int64_t timeout_ns = 0;   // as requested, or the default; > 0
  int64_t deadline_ns = 0;  // now_ns() + timeout_ns
  double scale = 1.0;
  uint64_t sequence = 0;   // assigned by the queue, from 1
  void* native = nullptr;  // owned by the transport, for an operation that is started and polled
};

// A monotonic clock in nanoseconds.
int64_t now_ns();

// now_ns() + timeout_ns; INT64_MAX if that is later than the clock can show.
int64_t deadline_after(int64_t timeout_ns);

// Tells the core that its thread spins.
inline void cpu_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Fills *op from *raw for this rank; supports is the transport's own. An error names the operation,
// the argument and its value, and is never fatal to the communicator.
Failure validate(const db_op* raw, int32_t rank, int32_t size, int64_t default_timeout_ns, Op* op,
                 int32_t (*supports)(const db_op&) = host_supports);

// The elements of a rank's part of send or recv, and where it begins, in bytes. counts: the count
// array of that buffer; NULL: every part has op.count elements.
inline uint64_t part_size(const Op& op, const uint64_t* counts, int32_t rank) {
  return counts != nullptr ? counts[rank] : op.count;
}
uint64_t part_offset(const Op& op, const uint64_t* counts, int32_t rank);

// "all_reduce of 1024 f32 (sum), operation 7".
std::string describe(const Op& op);

// In a catch block: what an exception that ended an operation means.
Failure failure_of_exception(const Op& op);

// Copies the count arrays (size entries each) into store and points op at the copies.
void keep_counts(Op* op, int32_t size, std::vector<uint64_t>* store);

}  // namespace db
