// The double's libnccl.so.2: the entry points of NCCL that the nccl backend calls.
#include <nccl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "common/reduce.h"
#include "communicator.h"

#pragma GCC visibility push(default)

namespace {

using nccl_double::Call;
using nccl_double::Collective;

constexpr unsigned int kMagic = 0xcafebeef;

// This thread's calls between ncclGroupStart and ncclGroupEnd.
thread_local int depth = 0;
thread_local std::vector<std::pair<ncclComm_t, std::vector<Call>>> grouped;

size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    default:
      return 8;
  }
}

ncclResult_t add(ncclComm_t comm, Call call, cudaStream_t stream) {
  if (comm == nullptr) return ncclInvalidArgument;
  if (const ncclResult_t result = comm->ready(); result != ncclSuccess) return result;
  call.stream = stream;
  if (depth == 0) return comm->launch({call});
  for (auto& [known, calls] : grouped) {
    if (known != comm) continue;
    calls.push_back(call);
    return ncclSuccess;
  }
  grouped.push_back({comm, {call}});
  return ncclSuccess;
}

ncclResult_t collective(Collective::Kind kind, const void* send, void* recv, size_t count,
                        ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t comm,
                        cudaStream_t stream) {
  Call call;
  call.collective = {
      kind, static_cast<const char*>(send), static_cast<char*>(recv), count, size_of(type), root,
      {}};
  const bool moves = kind == Collective::kBroadcast || kind == Collective::kAllGather;
  if (!moves) {
    const ncclResult_t result = comm->combine(type, op, &call.collective.combine);
    if (result != ncclSuccess) return result;
  }
  return add(comm, call, stream);
}

ncclResult_t message(bool sends, char* data, size_t count, ncclDataType_t type, int peer,
                     ncclComm_t comm, cudaStream_t stream) {
  Call call;
  call.is_message = true;
  call.message = {peer, sends, data, count * size_of(type)};
  return add(comm, call, stream);
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> made{0};
  std::snprintf(id->internal, sizeof(id->internal), "%d-%d", getpid(), ++made);
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclInvalidArgument:
      return "invalid argument";
    default:
      return "an error of the double";
  }
}

const char* ncclGetLastError(ncclComm_t comm) {
  return comm != nullptr ? comm->state->error.c_str() : "";
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (config->magic != kMagic) return ncclInvalidArgument;
  int device = 0;
  std::array<char, 64> gpu{};
  cudaGetDevice(&device);
  cudaDeviceGetPCIBusId(gpu.data(), static_cast<int>(gpu.size()), device);
  *comm = ncclComm::init({id.internal, gpu.data()}, rank, size, config->blocking != 0);
  return static_cast<ncclResult_t>((*comm)->state->result.load());
}

// NCCL 2.28 returns ncclSuccess from these two even if the child is still being made.
static ncclResult_t without_progress(ncclResult_t result) {
  return result == ncclInProgress ? ncclSuccess : result;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* part,
                           ncclConfig_t* config) {
  if (config->magic != kMagic) return ncclInvalidArgument;
  return without_progress(comm->split(color, key, part, config->blocking != 0));
}

ncclResult_t ncclCommShrink(ncclComm_t comm, int* excluded, int count, ncclComm_t* part,
                            ncclConfig_t* config, int flags) {
  if (config->magic != kMagic) return ncclInvalidArgument;
  const std::vector<int> ranks(excluded, excluded + count);
  constexpr int kAbort = 1;
  return without_progress(comm->shrink(ranks, (flags & kAbort) != 0, part, config->blocking != 0));
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void* buffer, size_t size, void** handle) {
  return comm->know(buffer, size, handle);
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  return comm->forget(handle);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  *result = static_cast<ncclResult_t>(comm->state->result.load());
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  *count = comm->state->size;
  return comm->ready();
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->state->rank;
  return comm->ready();
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) { return comm->finalize(); }

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  comm->end(false);
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->end(true);
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t, ncclComm_t comm) {
  double scale = 0;
  float narrow = 0;
  uint16_t bits = 0;
  if (type == ncclFloat64) {
    std::memcpy(&scale, scalar, sizeof(scale));
  } else if (type == ncclFloat32) {
    std::memcpy(&narrow, scalar, sizeof(narrow));
    scale = narrow;
  } else {
    std::memcpy(&bits, scalar, sizeof(bits));
    scale = type == ncclFloat16 ? db::f16_to_float(bits) : db::bf16_to_float(bits);
  }
  *op = comm->make_premul(scale);
  return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  comm->drop(op);
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (depth == 0) return ncclInvalidUsage;
  if (--depth > 0) return ncclSuccess;
  ncclResult_t result = ncclSuccess;
  for (auto& [comm, calls] : std::exchange(grouped, {})) {
    const ncclResult_t one = comm->launch(std::move(calls));
    if (result == ncclSuccess) result = one;
  }
  return result;
}

ncclResult_t ncclAllReduce(const void* send, void* recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return collective(Collective::kAllReduce, send, recv, count, type, op, 0, comm, stream);
}

ncclResult_t ncclBroadcast(const void* send, void* recv, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  return collective(Collective::kBroadcast, send, recv, count, type, ncclSum, root, comm, stream);
}

ncclResult_t ncclReduce(const void* send, void* recv, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return collective(Collective::kReduce, send, recv, count, type, op, root, comm, stream);
}

ncclResult_t ncclAllGather(const void* send, void* recv, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return collective(Collective::kAllGather, send, recv, count, type, ncclSum, 0, comm, stream);
}

ncclResult_t ncclReduceScatter(const void* send, void* recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return collective(Collective::kReduceScatter, send, recv, count, type, op, 0, comm, stream);
}

ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  auto* const bytes = const_cast<char*>(static_cast<const char*>(data));
  return message(true, bytes, count, type, peer, comm, stream);
}

ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return message(false, static_cast<char*>(data), count, type, peer, comm, stream);
}

}  // extern "C"

#pragma GCC visibility pop
