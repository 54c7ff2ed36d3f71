// SEND and RECV: started in order, then polled, so that neither of two ranks that send to each
// other waits for the other. The MPI_Request lies in Op::native. One thread at a time.
#pragma once

#include <mpi.h>

#include "common/error.h"
#include "common/op.h"

namespace db::mpi {

struct PointToPoint {
  MPI_Comm comm;
  int32_t rank;
  uint64_t max_elements;

  db_status start(Op& op, Failure* failure) const;
  // At the deadline a RECV is taken back (DB_ERR_TIMEOUT); what MPI cannot take back, a SEND or a
  // RECV that data is flowing into, ends the process.
  db_status poll(Op& op, Failure* failure) const;
  void cancel(Op& op) const;
};

}  // namespace db::mpi
