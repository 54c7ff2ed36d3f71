// Communicator: one db_communicator on its own MPI communicator. Thread rules are the ABI's; the
// queue ensures that only one thread at a time is inside the executor's functions.
#pragma once

#include <coupler/distributed_backend.h>
#include <mpi.h>

#include <cstdint>
#include <memory>

#include "common/error.h"
#include "common/op.h"
#include "common/serial_queue.h"
#include "mpi/collectives.h"
#include "mpi/entry_barrier.h"
#include "mpi/watchdog.h"

namespace db::mpi {

// SEND and RECV: started in order, then polled, so that two ranks that send to each other do not
// wait for each other. Op::native holds the MPI_Request. One thread at a time.

struct PointToPoint {
  MPI_Comm comm;
  int32_t rank;
  uint64_t max_elements;

  db_status start(Op& op, Failure* failure) const;
  // At the deadline a RECV is canceled (DB_ERR_TIMEOUT). If MPI cannot cancel it (a SEND, or a RECV
  // that is already receiving data), the process exits.
  db_status poll(Op& op, Failure* failure) const;
  void cancel(Op& op) const;
};

class Communicator final : public Executor {
 public:
  // Collective over comm. Takes ownership of comm, even on failure.
  static Failure create(MPI_Comm comm, const Tuning& tuning, int64_t default_timeout_ns,
                        std::unique_ptr<Communicator>* result);
  ~Communicator();

  db_communicator* handle() { return &handle_.base; }
  static Communicator& of(db_communicator* c);
  static const Communicator& of(const db_communicator* c);

  db_status submit(const db_op* raw, db_request** request, db_error* error);
  db_status split(int32_t color, int32_t key, db_communicator** result, db_error* error);
  db_status async_error(db_error* error) const { return queue_.async_error(error); }
  void abort();

  db_status execute(Op& op, Failure* failure) override;
  db_status poll(Op& op, Failure* failure) override;
  void cancel(Op& op) override { point_to_point_.cancel(op); }

 private:
  struct Handle {  // leads from the db_communicator back to its owner
    db_communicator base;
    Communicator* owner;
  };
  Communicator(MPI_Comm comm, int32_t rank, int32_t size, const Tuning& tuning,
               int64_t default_timeout_ns);
  void failed(const Failure& failure);

  Handle handle_;
  const MPI_Comm comm_;
  const int32_t rank_;
  const int32_t size_;
  const Tuning tuning_;
  const int64_t default_timeout_ns_;
  Watch watch_;
  Collectives collectives_;
  PointToPoint point_to_point_;
  std::unique_ptr<EntryBarrier> entry_barrier_;  // empty: the ranks are not all on one machine
  SerialQueue queue_;
};

}  // namespace db::mpi
