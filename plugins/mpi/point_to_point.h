// SEND and RECV: started in order, then polled, so that two ranks that send to each other do not
// wait for each other. Op::native holds the MPI_Request. One thread at a time.
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
  // At the deadline a RECV is canceled (DB_ERR_TIMEOUT). If MPI cannot cancel it (a SEND, or a RECV
  // that is already receiving data), the process exits.
  db_status poll(Op& op, Failure* failure) const;
  void cancel(Op& op) const;
};

}  // namespace db::mpi
