// Op: one db_op after validation, with everything worked out that a transport needs:
// byte counts, offsets of the V kinds, in place or not, an absolute deadline. A plain value; the
// count arrays are borrowed from the caller until keep_counts() copies them.
#pragma once

#include <coupler/distributed_backend.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/types.h"

namespace db {

struct Op {
  db_kind kind = 0;
  db_dtype dtype = 0;
  db_reduce reduce = 0;
  int32_t root_or_peer = 0;
  const void* send = nullptr;
  void* recv = nullptr;
  uint64_t count = 0;  // of the V kinds: 0
  const uint64_t* send_counts = nullptr;
  const uint64_t* recv_counts = nullptr;
  int32_t tag = 0;
  bool blocking = false;    // DB_OP_BLOCKING
  bool in_place = false;    // as the ABI defines it for this kind, on this rank
  uint64_t element = 0;     // bytes of one element; 0 for BARRIER
  uint64_t send_size = 0;   // elements this rank sends from `send`; 0: it has no send
  uint64_t recv_size = 0;   // elements this rank receives into `recv`
  int64_t timeout_ns = 0;   // what was asked for, defaults applied; > 0
  int64_t deadline_ns = 0;  // now_ns() + timeout_ns
  double scale = 1.0;
  uint64_t sequence = 0;   // the queue's number for it, from 1
  void* native = nullptr;  // the transport's, for an operation that is started and polled
};

// A monotonic clock in nanoseconds.
int64_t now_ns();

// Fills *op from *raw for this rank; supports is the transport's own. The error text names
// operation, argument and values; nothing of it is fatal to the communicator.
Failure validate(const db_op* raw, int32_t rank, int32_t size, int64_t default_timeout_ns, Op* op,
                 int32_t (*supports)(const db_op&) = host_supports);

// "all_reduce of 1024 f32 (sum), operation 7".
std::string describe(const Op& op);

// Copies the count arrays (size ranks each) into store and lets op point there.
void keep_counts(Op* op, int32_t size, std::vector<uint64_t>* store);

}  // namespace db
