#include "nccl/failures.h"

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

// The advice that NCCL's own texts lack.
std::string advice(ncclResult_t result, const std::string& last) {
  if (last.find("Duplicate GPU") != std::string::npos)
    return ". NCCL needs a GPU for each rank: start as many processes a machine as it has GPUs, or "
           "let CUDA_VISIBLE_DEVICES give each rank another one";
  if (result == ncclRemoteError) return ". Another rank has ended or cannot be reached";
  if (result == ncclUnhandledCudaError || result == ncclSystemError || result == ncclInternalError)
    return ". NCCL_DEBUG=WARN in the environment makes NCCL say more";
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
              ? std::to_string(bytes) + " bytes of device memory in between, more than there is"
              : "more device memory than there is";
  size_t free_bytes = 0, total = 0;
  if (cuda().MemGetInfo(&free_bytes, &total) == cudaSuccess)
    text += ": of " + std::to_string(total) + " bytes " + std::to_string(free_bytes) + " are free";
  return Failure::make(DB_ERR_NO_MEMORY,
                       text + (bytes != 0 ? "; send smaller parts, or not in place"
                                          : "; smaller batches or a model that is sharded leave "
                                            "more, and so does a smaller NCCL_BUFFSIZE"),
                       DB_ERROR_COMM_DEAD, -1, cudaErrorMemoryAllocation);
}

}  // namespace db::nccl
