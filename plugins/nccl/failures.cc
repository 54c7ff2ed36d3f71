#include "nccl/failures.h"

#include <time.h>

#include <chrono>
#include <future>
#include <memory>
#include <system_error>

#include "common/op.h"
#include "common/thread.h"
#include "nccl/library.h"

namespace db::nccl {
namespace {

db_status status_of(ncclResult_t result) {
  switch (result) {
    case ncclRemoteError:
      return DB_ERR_PEER_LOST;
    case ncclSystemError:
      return DB_ERR_SYSTEM;
    case ncclInvalidArgument:
    case ncclInvalidUsage:
      return DB_ERR_INVALID_ARGUMENT;
    default:
      return DB_ERR_INTERNAL;
  }
}

// Advice that NCCL's own messages lack.
std::string advice(ncclResult_t result, const std::string& last) {
  if (last.find("Duplicate GPU") != std::string::npos)
    return ". NCCL needs a GPU for each rank: start no more processes per machine than it has "
           "GPUs, "
           "or set CUDA_VISIBLE_DEVICES to another GPU for each rank";
  if (result == ncclRemoteError) return ". Another rank has exited or cannot be reached";
  if (result == ncclUnhandledCudaError || result == ncclSystemError || result == ncclInternalError)
    return ". Set NCCL_DEBUG=WARN for details from NCCL";
  return "";
}

}  // namespace

Failure cuda_failure(cudaError_t error, const std::string& what) {
  if (error == cudaErrorMemoryAllocation) return no_memory(0, what);
  return Failure::make(DB_ERR_INTERNAL,
                       "nccl: " + what + ": " + cuda().GetErrorName(error) + " (" +
                           cuda().GetErrorString(error) + ")",
                       DB_ERROR_COMM_DEAD, -1, error);
}

Failure nccl_failure(ncclResult_t result, ncclComm_t comm, const std::string& what) {
  const char* const found = nccl().GetLastError(comm);
  const std::string last = found != nullptr ? found : "";
  if (result == ncclUnhandledCudaError && last.find("out of memory") != std::string::npos) {
    Failure failure = no_memory(0, what);
    failure.native_code = result;
    return failure;
  }
  std::string text = "nccl: " + what + ": " + nccl().GetErrorString(result);
  if (!last.empty()) text += ": " + last;
  return Failure::make(status_of(result), text + advice(result, last), DB_ERROR_COMM_DEAD, -1,
                       result);
}

Failure no_memory(uint64_t bytes, const std::string& what) {
  std::string text = "nccl: " + what + " needs ";
  text += bytes != 0
              ? std::to_string(bytes) + " bytes of temporary device memory, more than there is"
              : "more device memory than there is";
  size_t free_bytes = 0, total = 0;
  if (cuda().MemGetInfo(&free_bytes, &total) == cudaSuccess)
    text += ": of " + std::to_string(total) + " bytes, " + std::to_string(free_bytes) + " are free";
  return Failure::make(DB_ERR_NO_MEMORY,
                       text + (bytes != 0 ? "; send smaller parts, or not in place"
                                          : "; use smaller batches, shard the model, or set a "
                                            "smaller NCCL_BUFFSIZE"),
                       DB_ERROR_COMM_DEAD, -1, cudaErrorMemoryAllocation);
}

namespace {

// For ncclCommFinalize. It takes a few milliseconds if the peers close their communicators too.
constexpr int64_t kFinalizeLimitNs = 2'000'000'000;

}  // namespace

ncclResult_t state_of(ncclComm_t comm) {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t result = nccl().CommGetAsyncError(comm, &state);
  return result != ncclSuccess ? result : state;
}

ncclResult_t await_state(ncclComm_t comm, int64_t deadline_ns) {
  constexpr timespec kPause = {0, 200'000};
  ncclResult_t state = state_of(comm);
  while (state == ncclInProgress && now_ns() < deadline_ns) {
    nanosleep(&kPause, nullptr);
    state = state_of(comm);
  }
  return state;
}

bool abort_communicator(ncclComm_t comm) {
  const auto ended = std::make_shared<std::promise<void>>();
  const auto abort = [comm, ended] {
    nccl().CommAbort(comm);
    ended->set_value();
  };
  const std::future<void> end = ended->get_future();
  try {
    start_thread(abort).detach();
  } catch (const std::system_error&) {  // the thread cannot be created
    abort();
  }
  return end.wait_for(std::chrono::nanoseconds(kAbortLimitNs)) == std::future_status::ready;
}

bool close_communicator(ncclComm_t comm) {
  ncclResult_t state = nccl().CommFinalize(comm);
  if (state == ncclInProgress) state = await_state(comm, now_ns() + kFinalizeLimitNs);
  if (state != ncclSuccess) return abort_communicator(comm);
  nccl().CommDestroy(comm);
  return true;
}

}  // namespace db::nccl
