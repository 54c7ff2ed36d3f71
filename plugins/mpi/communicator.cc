#include "mpi/communicator.h"

#include <string>

#include "mpi/runtime.h"

namespace db::mpi {
namespace {

// Open MPI's handles are pointers.
static_assert(sizeof(MPI_Request) == sizeof(void*));

Failure message_failure(int code, const Op& op) {
  Failure failure = mpi_failure(code, describe(op));
  failure.failed_rank = op.root_or_peer;
  return failure;
}

Communicator& of(db_communicator* communicator) {
  return static_cast<Communicator&>(*communicator);
}
const Communicator& of(const db_communicator* communicator) {
  return static_cast<const Communicator&>(*communicator);
}

db_status supports(const db_communicator*, const db_op* op, int32_t* score) {
  *score = host_supports(*op);
  return DB_OK;
}

db_status submit(db_communicator* communicator, const db_op* op, db_request** request,
                 db_error* error) {
  *request = nullptr;
  return guarded("", error, [&] { return of(communicator).submit(op, request, error); });
}

db_status split(db_communicator* communicator, int32_t color, int32_t key, db_communicator** result,
                db_error* error) {
  *result = nullptr;
  return guarded("", error, [&] { return of(communicator).split(color, key, result, error); });
}

db_status async_error(const db_communicator* communicator, db_error* error) {
  return of(communicator).async_error(error);
}

db_status abort(db_communicator* communicator) {
  of(communicator).abort();
  return DB_ERR_UNSUPPORTED;
}

void destroy(db_communicator* communicator) { delete &of(communicator); }

db_status wait_host(db_request* request, int64_t timeout_ns, db_error* error) {
  return guarded("", error, [&] { return SerialQueue::wait(request, timeout_ns, error); });
}

constexpr db_communicator_functions kFunctions = {
    sizeof(db_communicator_functions),
    supports,
    submit,
    SerialQueue::test,
    wait_host,
    nullptr,  // wait_stream: host memory only
    SerialQueue::release,
    split,
    async_error,
    abort,
    destroy,
    nullptr,  // get_extension
};

}  // namespace

Communicator::Communicator(MPI_Comm comm, int32_t own_rank, int32_t ranks, const Tuning& tuning,
                           int64_t default_timeout_ns)
    : db_communicator{sizeof(db_communicator), &kFunctions, own_rank, ranks},
      comm_(comm),
      tuning_(tuning),
      default_timeout_ns_(default_timeout_ns),
      collectives_(comm, own_rank, ranks, tuning),
      queue_(this, ranks) {
  watch_.set_rank(own_rank);
}

Failure Communicator::create(MPI_Comm comm, const Tuning& tuning, int64_t default_timeout_ns,
                             db_communicator** result) {
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  int rank = 0, size = 0;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  std::unique_ptr<Communicator> made(
      new Communicator(comm, rank, size, tuning, default_timeout_ns));
  made->watch_.begin("setting up a communicator", default_timeout_ns);
  Failure failure = EntryBarrier::create(comm, &made->entry_barrier_);
  made->watch_.end();
  if (failure.ok()) *result = made.release();
  return failure;
}

Communicator::~Communicator() {
  const bool clean = !queue_.failed();
  if (entry_barrier_ != nullptr) entry_barrier_->withdraw();
  queue_.shutdown();
  // Open MPI's MPI_Comm_free is local, but after a failure nothing is certain, so comm is leaked.
  MPI_Comm comm = comm_;
  if (clean && is_up()) MPI_Comm_free(&comm);
}

db_status Communicator::submit(const db_op* raw, db_request** request, db_error* error) {
  Op op;
  const Failure invalid = validate(raw, rank, size, default_timeout_ns_, &op);
  if (!invalid.ok()) return report(invalid, error);
  return queue_.submit(op, request, error);
}

Failure Communicator::execute(Op& op) {
  return noted(is_point_to_point(op.kind) ? start_message(op) : run(op));
}

Failure Communicator::poll(Op& op) { return noted(poll_message(op)); }

// failure, after telling the peers that this rank takes part in nothing more if it is fatal.
Failure Communicator::noted(Failure failure) {
  if (failure.dead() && entry_barrier_ != nullptr) entry_barrier_->withdraw();
  return failure;
}

Failure Communicator::run(const Op& op) {
  const InsideMpi inside;
  if (entry_barrier_ != nullptr) {
    Failure failure = entry_barrier_->enter(op);
    // The entry barrier acts as the barrier.
    if (!failure.ok() || op.kind == DB_BARRIER) return failure;
  }
  watch_.begin(op);
  const int code = collectives_.run(op);
  watch_.end();
  return code == MPI_SUCCESS ? Failure{} : mpi_failure(code, describe(op));
}

// SEND and RECV: started in order, then polled, so that two ranks that send to each other do not
// wait for each other. Op::native holds the MPI_Request.

Failure Communicator::start_message(Op& op) {
  const Extent all(op.count, datatype(op.dtype), tuning_.max_elements);
  MPI_Request request = MPI_REQUEST_NULL;
  // poll() and cancel() complete the request, which the analyzer cannot see.
  // NOLINTBEGIN(clang-analyzer-optin.mpi.MPI-Checker)
  const int code =
      op.kind == DB_SEND
          ? MPI_Isend(op.send, all.count(), all.type(), op.root_or_peer, op.tag, comm_, &request)
          : MPI_Irecv(op.recv, all.count(), all.type(), op.root_or_peer, op.tag, comm_, &request);
  if (code != MPI_SUCCESS) return message_failure(code, op);
  op.native = request;
  return poll_message(op);
  // NOLINTEND(clang-analyzer-optin.mpi.MPI-Checker)
}

// At the deadline a RECV is canceled (DB_ERR_TIMEOUT). If MPI cannot cancel it (a SEND, or a RECV
// that is already receiving data), the process exits.
Failure Communicator::poll_message(Op& op) const {
  auto request = static_cast<MPI_Request>(op.native);
  MPI_Status status;
  int done = 0;
  int code = MPI_Test(&request, &done, &status);
  op.native = request;
  if (code == MPI_SUCCESS && done == 0) {
    if (now_ns() < op.deadline_ns) return {DB_IN_PROGRESS};
    int taken_back = 0;
    if (op.kind == DB_RECV && MPI_Cancel(&request) == MPI_SUCCESS &&
        MPI_Test(&request, &done, &status) == MPI_SUCCESS && done != 0)
      MPI_Test_cancelled(&status, &taken_back);
    if (taken_back == 0 && done == 0) Watch::give_up(rank, op);
    op.native = request;
    if (taken_back != 0)
      return Failure::make(DB_ERR_TIMEOUT,
                           describe(op) + ": no message with tag " + std::to_string(op.tag) +
                               " arrived within " + std::to_string(op.timeout_ns / 1'000'000) +
                               " ms",
                           DB_ERROR_COMM_DEAD, op.root_or_peer);
  }
  if (code != MPI_SUCCESS) return message_failure(code, op);
  if (op.kind == DB_SEND) return {};
  MPI_Count bytes = 0;
  code = MPI_Get_elements_x(&status, MPI_BYTE, &bytes);
  if (code == MPI_SUCCESS && static_cast<uint64_t>(bytes) == op.count * op.element) return {};
  return Failure::make(DB_ERR_MISMATCH,
                       describe(op) + ": rank " + std::to_string(op.root_or_peer) + " sent " +
                           std::to_string(bytes) + " bytes, rank " + std::to_string(rank) +
                           " expects " + std::to_string(op.count * op.element),
                       DB_ERROR_COMM_DEAD, op.root_or_peer);
}

void Communicator::cancel(Op& op) {
  auto request = static_cast<MPI_Request>(op.native);
  if (request == MPI_REQUEST_NULL || !is_up()) return;
  if (op.kind == DB_RECV) MPI_Cancel(&request);
  MPI_Request_free(&request);
  op.native = nullptr;
}

void Communicator::abort() {
  queue_.abort();
  if (entry_barrier_ != nullptr) entry_barrier_->withdraw();
}

db_status Communicator::split(int32_t color, int32_t key, db_communicator** result,
                              db_error* error) {
  if (const db_status status = queue_.drain(error); status != DB_OK) return status;
  MPI_Comm part = MPI_COMM_NULL;
  watch_.begin("MPI_Comm_split", default_timeout_ns_);
  const int code = MPI_Comm_split(comm_, color < 0 ? MPI_UNDEFINED : color, key, &part);
  watch_.end();
  Failure failure;
  if (code != MPI_SUCCESS) {
    failure = mpi_failure(code, "split");
  } else if (part != MPI_COMM_NULL) {
    failure = create(part, tuning_, default_timeout_ns_, result);
  }
  if (!failure.ok()) queue_.fail(noted(failure));
  return report(failure, error);
}

}  // namespace db::mpi
