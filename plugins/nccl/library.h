// libcudart and libnccl of this process, opened on first use and never closed, and the calling
// thread's current device. [any-thread].
//
// Search order for each: what the program has already loaded (LibTorch brings both); the folders of
// COUPLER_NCCL_PATH; next to LibTorch, where pip puts the wheels; the system. Two copies of NCCL in
// one process would both assume that they own the GPUs, so a second one is an error.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <string>

#include "common/error.h"

#if NCCL_VERSION_CODE < 21800
#error "the nccl backend needs the headers of NCCL 2.18 or newer; scripts/setup fetches them"
#endif

namespace db::nccl {

// Cuda and Nccl: the functions of the libraries that this backend calls, as pointers, because
// neither library is linked. Filled in once by library.cc, constant afterwards; [any-thread] as far
// as the libraries are (an NCCL communicator: one thread at a time).

// The flags of ncclCommShrink, which older headers lack.
constexpr int kShrinkDefault = 0, kShrinkAbort = 1;

// X(member, result, arguments): "member" is the name without the library's prefix.
#define COUPLER_CUDA_FUNCTIONS(X)                                                         \
  X(DriverGetVersion, cudaError_t, (int*))                                                \
  X(RuntimeGetVersion, cudaError_t, (int*))                                               \
  X(GetErrorName, const char*, (cudaError_t))                                             \
  X(GetErrorString, const char*, (cudaError_t))                                           \
  X(GetDeviceCount, cudaError_t, (int*))                                                  \
  X(GetDevice, cudaError_t, (int*))                                                       \
  X(SetDevice, cudaError_t, (int))                                                        \
  X(DeviceGetPCIBusId, cudaError_t, (char*, int, int))                                    \
  X(DeviceGetStreamPriorityRange, cudaError_t, (int*, int*))                              \
  X(MemGetInfo, cudaError_t, (size_t*, size_t*))                                          \
  X(MallocAsync, cudaError_t, (void**, size_t, cudaStream_t))                             \
  X(FreeAsync, cudaError_t, (void*, cudaStream_t))                                        \
  X(MemcpyAsync, cudaError_t, (void*, const void*, size_t, cudaMemcpyKind, cudaStream_t)) \
  X(MemsetAsync, cudaError_t, (void*, int, size_t, cudaStream_t))                         \
  X(StreamCreateWithPriority, cudaError_t, (cudaStream_t*, unsigned int, int))            \
  X(StreamDestroy, cudaError_t, (cudaStream_t))                                           \
  X(StreamWaitEvent, cudaError_t, (cudaStream_t, cudaEvent_t, unsigned int))              \
  X(EventCreateWithFlags, cudaError_t, (cudaEvent_t*, unsigned int))                      \
  X(EventDestroy, cudaError_t, (cudaEvent_t))                                             \
  X(EventRecord, cudaError_t, (cudaEvent_t, cudaStream_t))                                \
  X(EventQuery, cudaError_t, (cudaEvent_t))

#define COUPLER_NCCL_FUNCTIONS(X)                                                             \
  X(GetVersion, ncclResult_t, (int*))                                                         \
  X(GetUniqueId, ncclResult_t, (ncclUniqueId*))                                               \
  X(GetErrorString, const char*, (ncclResult_t))                                              \
  X(GetLastError, const char*, (ncclComm_t))                                                  \
  X(CommInitRankConfig, ncclResult_t, (ncclComm_t*, int, ncclUniqueId, int, ncclConfig_t*))   \
  X(CommSplit, ncclResult_t, (ncclComm_t, int, int, ncclComm_t*, ncclConfig_t*))              \
  X(CommGetAsyncError, ncclResult_t, (ncclComm_t, ncclResult_t*))                             \
  X(CommCount, ncclResult_t, (ncclComm_t, int*))                                              \
  X(CommUserRank, ncclResult_t, (ncclComm_t, int*))                                           \
  X(CommFinalize, ncclResult_t, (ncclComm_t))                                                 \
  X(CommDestroy, ncclResult_t, (ncclComm_t))                                                  \
  X(CommAbort, ncclResult_t, (ncclComm_t))                                                    \
  X(RedOpCreatePreMulSum, ncclResult_t,                                                       \
    (ncclRedOp_t*, void*, ncclDataType_t, ncclScalarResidence_t, ncclComm_t))                 \
  X(RedOpDestroy, ncclResult_t, (ncclRedOp_t, ncclComm_t))                                    \
  X(GroupStart, ncclResult_t, ())                                                             \
  X(GroupEnd, ncclResult_t, ())                                                               \
  X(AllReduce, ncclResult_t,                                                                  \
    (const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t))      \
  X(Broadcast, ncclResult_t,                                                                  \
    (const void*, void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))              \
  X(Reduce, ncclResult_t,                                                                     \
    (const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t, cudaStream_t)) \
  X(AllGather, ncclResult_t,                                                                  \
    (const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t))                   \
  X(ReduceScatter, ncclResult_t,                                                              \
    (const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t))      \
  X(Send, ncclResult_t, (const void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t)) \
  X(Recv, ncclResult_t, (void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))

// Functions that older versions lack; then NULL.
#define COUPLER_NCCL_OPTIONAL(X)                                     \
  X(CommRegister, ncclResult_t, (ncclComm_t, void*, size_t, void**)) \
  X(CommDeregister, ncclResult_t, (ncclComm_t, void*))               \
  X(CommShrink, ncclResult_t, (ncclComm_t, int*, int, ncclComm_t*, ncclConfig_t*, int))

#define COUPLER_MEMBER(name, result, arguments) result(*name) arguments = nullptr;
struct Cuda {
  COUPLER_CUDA_FUNCTIONS(COUPLER_MEMBER)
};
struct Nccl {
  COUPLER_NCCL_FUNCTIONS(COUPLER_MEMBER)
  COUPLER_NCCL_OPTIONAL(COUPLER_MEMBER)
};
#undef COUPLER_MEMBER

struct Libraries {
  std::string problem;  // why GPUs cannot be used here; empty: they can
  Cuda cuda;            // complete if problem is empty, as is everything below
  Nccl nccl;            // except the optional functions
  std::string cuda_path, nccl_path;
  int runtime_version = 0, driver_version = 0;  // 13000 is CUDA 13.0
  int nccl_version = 0;                         // 22809 is NCCL 2.28.9
  int devices = 0;
};

const Libraries& libraries();

// For code that runs only if libraries().problem is empty.
inline const Cuda& cuda() { return libraries().cuda; }
inline const Nccl& nccl() { return libraries().nccl; }

// "NCCL 2.28.9 (/path), CUDA runtime 13.0 (/path), driver for CUDA 13.0, 8 devices".
std::string describe(const Libraries& found);

// A failure that names both paths if the process has loaded a second NCCL by now.
Failure check_single_nccl();

// Makes device current for the calling thread during its lifetime.
class OnDevice {
 public:
  explicit OnDevice(int device);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = -1;  // -1: device was already current
};

}  // namespace db::nccl
