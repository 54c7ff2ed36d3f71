#include "mpi/communicator.h"

#include <new>
#include <string>
#include <system_error>

#include "mpi/collectives.h"
#include "mpi/runtime.h"
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

namespace {

// No exception crosses the ABI; only memory and threads can run out here.
template <class Function>
db_status guarded(db_error* error, const Function& function) noexcept {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return report(DB_ERR_NO_MEMORY, "out of memory", error);
  } catch (const std::system_error& e) {
    return report(Failure::make(DB_ERR_SYSTEM, e.what(), 0, -1, e.code().value()), error);
  } catch (const std::exception& e) {
    return report(DB_ERR_INTERNAL, e.what(), error);
  }
}

db_status supports(const db_communicator*, const db_op* op, int32_t* score) {
  if (op == nullptr || score == nullptr || !DB_HAS(op, db_op, memory))
    return DB_ERR_INVALID_ARGUMENT;
  *score = host_supports(*op);
  return DB_OK;
}

db_status submit(db_communicator* c, const db_op* op, db_request** request, db_error* error) {
  if (c == nullptr || request == nullptr)
    return report(DB_ERR_INVALID_ARGUMENT, "submit: communicator or request is NULL", error);
  *request = nullptr;
  return guarded(error, [&] { return Communicator::of(c).submit(op, request, error); });
}

db_status split(db_communicator* c, int32_t color, int32_t key, db_communicator** result,
                db_error* error) {
  if (c == nullptr || result == nullptr)
    return report(DB_ERR_INVALID_ARGUMENT, "split: communicator or result is NULL", error);
  *result = nullptr;
  return guarded(error, [&] { return Communicator::of(c).split(color, key, result, error); });
}

db_status async_error(const db_communicator* c, db_error* error) {
  return Communicator::of(c).async_error(error);
}

db_status abort(db_communicator* c) {
  Communicator::of(c).abort();
  return DB_ERR_UNSUPPORTED;
}

void destroy(db_communicator* c) {
  if (c != nullptr) delete &Communicator::of(c);
}

const void* communicator_extension(const db_communicator*, const char*) { return nullptr; }

db_status wait_host(db_request* request, int64_t timeout_ns, db_error* error) {
  return guarded(error, [&] { return SerialQueue::wait(request, timeout_ns, error); });
}

constexpr db_communicator_functions kFunctions = {sizeof(db_communicator_functions),
                                                  supports,
                                                  submit,
                                                  SerialQueue::test,
                                                  wait_host,
                                                  nullptr,
                                                  SerialQueue::release,
                                                  split,
                                                  async_error,
                                                  abort,
                                                  destroy,
                                                  communicator_extension};

}  // namespace

Communicator::Communicator(MPI_Comm comm, int32_t rank, int32_t size, const Tuning& tuning,
                           int64_t default_timeout_ns)
    : handle_{{sizeof(db_communicator), &kFunctions, rank, size}, this},
      comm_(comm),
      rank_(rank),
      size_(size),
      tuning_(tuning),
      default_timeout_ns_(default_timeout_ns),
      collectives_(comm, rank, size, tuning),
      point_to_point_{comm, rank, tuning.max_elements},
      queue_(this, size) {
  watch_.set_rank(rank);
}

Failure Communicator::create(MPI_Comm comm, const Tuning& tuning, int64_t default_timeout_ns,
                             std::unique_ptr<Communicator>* result) {
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  int rank = 0, size = 0;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  std::unique_ptr<Communicator> made(
      new Communicator(comm, rank, size, tuning, default_timeout_ns));
  made->watch_.begin("setting up a communicator", default_timeout_ns);
  Failure failure = EntryBarrier::create(comm, &made->entry_barrier_);
  made->watch_.end();
  if (failure.ok()) *result = std::move(made);
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

Communicator& Communicator::of(db_communicator* c) { return *reinterpret_cast<Handle*>(c)->owner; }

const Communicator& Communicator::of(const db_communicator* c) {
  return *reinterpret_cast<const Handle*>(c)->owner;
}

db_status Communicator::submit(const db_op* raw, db_request** request, db_error* error) {
  Op op;
  const Failure invalid = validate(raw, rank_, size_, default_timeout_ns_, &op);
  if (!invalid.ok()) return report(invalid, error);
  return queue_.submit(op, request, error);
}

db_status Communicator::execute(Op& op, Failure* failure) {
  if (is_point_to_point(op.kind)) {
    const db_status status = point_to_point_.start(op, failure);
    if (status < 0) failed(*failure);
    return status;
  }
  const InsideMpi inside;
  if (entry_barrier_ != nullptr) {
    if (entry_barrier_->enter(op, failure) != DB_OK) {
      failed(*failure);
      return failure->status;
    }
    if (op.kind == DB_BARRIER) return DB_OK;  // the entry barrier acted as the barrier
  }
  watch_.begin(op);
  const int code = collectives_.run(op);
  watch_.end();
  if (code == MPI_SUCCESS) return DB_OK;
  *failure = mpi_failure(code, describe(op));
  failed(*failure);
  return failure->status;
}

db_status Communicator::poll(Op& op, Failure* failure) {
  const db_status status = point_to_point_.poll(op, failure);
  if (status < 0) failed(*failure);
  return status;
}

void Communicator::failed(const Failure& failure) {
  if (failure.dead() && entry_barrier_ != nullptr) entry_barrier_->withdraw();
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
    std::unique_ptr<Communicator> made;
    failure = create(part, tuning_, default_timeout_ns_, &made);
    if (failure.ok()) *result = made.release()->handle();
  }
  if (failure.ok()) return DB_OK;
  failed(failure);
  queue_.fail(failure);
  return report(failure, error);
}

}  // namespace db::mpi
