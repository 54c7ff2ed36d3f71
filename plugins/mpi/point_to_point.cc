#include "mpi/point_to_point.h"

#include "mpi/runtime.h"
#include "mpi/types.h"
#include "mpi/watchdog.h"

namespace db::mpi {
namespace {

// Open MPI's handles are pointers.
static_assert(sizeof(MPI_Request) == sizeof(void*));

db_status failed(int code, const Op& op, Failure* failure) {
  *failure = mpi_failure(code, describe(op));
  failure->failed_rank = op.root_or_peer;
  return failure->status;
}

}  // namespace

db_status PointToPoint::start(Op& op, Failure* failure) const {
  const Extent all(op.count, datatype(op.dtype), max_elements);
  MPI_Request request = MPI_REQUEST_NULL;
  // poll() and cancel() complete the request, which the analyzer cannot see.
  // NOLINTBEGIN(clang-analyzer-optin.mpi.MPI-Checker)
  const int code =
      op.kind == DB_SEND
          ? MPI_Isend(op.send, all.count(), all.type(), op.root_or_peer, op.tag, comm, &request)
          : MPI_Irecv(op.recv, all.count(), all.type(), op.root_or_peer, op.tag, comm, &request);
  if (code != MPI_SUCCESS) return failed(code, op, failure);
  op.native = request;
  return poll(op, failure);
  // NOLINTEND(clang-analyzer-optin.mpi.MPI-Checker)
}

db_status PointToPoint::poll(Op& op, Failure* failure) const {
  auto request = static_cast<MPI_Request>(op.native);
  MPI_Status status;
  int done = 0;
  int code = MPI_Test(&request, &done, &status);
  op.native = request;
  if (code == MPI_SUCCESS && done == 0) {
    if (now_ns() < op.deadline_ns) return DB_IN_PROGRESS;
    int taken_back = 0;
    if (op.kind == DB_RECV && MPI_Cancel(&request) == MPI_SUCCESS &&
        MPI_Test(&request, &done, &status) == MPI_SUCCESS && done != 0)
      MPI_Test_cancelled(&status, &taken_back);
    if (taken_back == 0 && done == 0) Watch::give_up(rank, op);
    op.native = request;
    if (taken_back != 0) {
      *failure =
          Failure::make(DB_ERR_TIMEOUT,
                        describe(op) + ": no message with tag " + std::to_string(op.tag) +
                            " arrived within " + std::to_string(op.timeout_ns / 1'000'000) + " ms",
                        DB_ERROR_COMM_DEAD, op.root_or_peer);
      return failure->status;
    }
  }
  if (code != MPI_SUCCESS) return failed(code, op, failure);
  if (op.kind == DB_SEND) return DB_OK;
  MPI_Count bytes = 0;
  code = MPI_Get_elements_x(&status, MPI_BYTE, &bytes);
  if (code == MPI_SUCCESS && static_cast<uint64_t>(bytes) == op.count * op.element) return DB_OK;
  *failure = Failure::make(DB_ERR_MISMATCH,
                           describe(op) + ": rank " + std::to_string(op.root_or_peer) + " sent " +
                               std::to_string(bytes) + " bytes, rank " + std::to_string(rank) +
                               " expects " + std::to_string(op.count * op.element),
                           DB_ERROR_COMM_DEAD, op.root_or_peer);
  return failure->status;
}

void PointToPoint::cancel(Op& op) const {
  auto request = static_cast<MPI_Request>(op.native);
  if (request == MPI_REQUEST_NULL || !is_up()) return;
  if (op.kind == DB_RECV) MPI_Cancel(&request);
  MPI_Request_free(&request);
  op.native = nullptr;
}

}  // namespace db::mpi
