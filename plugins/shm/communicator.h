// Communicator: what is under a db_communicator of this backend. Thread rule: as tagged in
// distributed_backend.h.
#pragma once

#include <coupler/distributed_backend.h>

#include <cstdint>
#include <string>

#include "common/error.h"
#include "common/serial_queue.h"
#include "shm/joining.h"
#include "shm/meeting.h"
#include "shm/operation_executor.h"

namespace db::shm {

// What a communicator is made with; kept for those that are made from it.
struct Setup {
  int32_t rank = 0;
  int32_t size = 1;
  int64_t default_timeout_ns = 0;
  Patience patience;
  uint64_t chunk_bytes = 0;  // 0: by the number of ranks
  bool peer_memory = true;   // whether ranks may allocate memory that their peers reach
  Bytes32 key{};
  Reach reach = Reach::kProc;
};

struct Communicator : db_communicator {
  Communicator(const Setup& chosen, Joined joined);

  static Communicator* of(db_communicator* base) { return static_cast<Communicator*>(base); }
  static const Communicator* of(const db_communicator* base) {
    return static_cast<const Communicator*>(base);
  }

  const Setup setup;
  OperationExecutor executor;
  SerialQueue queue;
  uint32_t shrinks = 0;  // shrink was called this often
};

// submit of the ABI.
db_status submit(db_communicator* communicator, const db_op* raw, db_request** request,
                 db_error* error);

// Ends all operations of communicator, as abort of the ABI does.
void end_operations(Communicator* communicator);

// Joins the ranks that meet at place and makes the communicator. listening: rank 0's socket. *note:
// for the log.
Failure open(const Setup& setup, const MeetingPlace& place, const Listening& listening,
             int64_t deadline_ns, db_communicator** result, std::string* note);

// The options of create.
struct Settings {
  int64_t busy_poll_us = 0;
  uint64_t chunk_bytes = 0;  // 0: by the number of ranks
  bool peer_memory = true;
};

Failure create_communicator(const db_communicator_params& params, const Settings& settings,
                            db_communicator** result);

}  // namespace db::shm
