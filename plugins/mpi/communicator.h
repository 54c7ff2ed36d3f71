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

class Communicator final : public db_communicator, public Executor {
 public:
  // Collective over comm. Takes ownership of comm, even on failure.
  static Failure create(MPI_Comm comm, const Tuning& tuning, int64_t default_timeout_ns,
                        db_communicator** result);
  ~Communicator();

  db_status submit(const db_op* raw, db_request** request, db_error* error);
  db_status split(int32_t color, int32_t key, db_communicator** result, db_error* error);
  db_status async_error(db_error* error) const { return queue_.async_error(error); }
  void abort();

  Failure execute(Op& op) override;
  Failure poll(Op& op) override;
  void cancel(Op& op) override;

 private:
  Communicator(MPI_Comm comm, int32_t own_rank, int32_t ranks, const Tuning& tuning,
               int64_t default_timeout_ns);
  Failure run(const Op& op);
  Failure start_message(Op& op);
  Failure poll_message(Op& op) const;
  Failure noted(Failure failure);

  const MPI_Comm comm_;
  const Tuning tuning_;
  const int64_t default_timeout_ns_;
  Watch watch_;
  Collectives collectives_;
  std::unique_ptr<EntryBarrier> entry_barrier_;  // empty: the ranks are not all on one machine
  SerialQueue queue_;
};

}  // namespace db::mpi
