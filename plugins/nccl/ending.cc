#include "nccl/ending.h"

#include <time.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

#include "common/op.h"
#include "nccl/library.h"

namespace db::nccl {
namespace {

// For ncclCommFinalize. It takes a few milliseconds if the peers close their communicators too.
constexpr int64_t kFinalizeLimitNs = 2'000'000'000;

struct Progress {
  std::mutex mutex;
  std::condition_variable changed;
  bool ended = false;
};

}  // namespace

bool abort_communicator(ncclComm_t comm) {
  const auto progress = std::make_shared<Progress>();
  const auto end = [progress, comm] {
    nccl().CommAbort(comm);
    {
      const std::lock_guard lock(progress->mutex);
      progress->ended = true;
    }
    progress->changed.notify_all();
  };
  try {
    std::thread(end).detach();
  } catch (const std::system_error&) {  // the thread cannot be created
    end();
  }
  std::unique_lock lock(progress->mutex);
  return progress->changed.wait_for(lock, std::chrono::nanoseconds(kAbortLimitNs),
                                    [&] { return progress->ended; });
}

bool close_communicator(ncclComm_t comm) {
  constexpr timespec kPause = {0, 200'000};
  const int64_t deadline_ns = now_ns() + kFinalizeLimitNs;
  ncclResult_t state = nccl().CommFinalize(comm);
  while (state == ncclInProgress && now_ns() < deadline_ns) {
    nanosleep(&kPause, nullptr);
    if (nccl().CommGetAsyncError(comm, &state) != ncclSuccess) break;
  }
  if (state != ncclSuccess) return abort_communicator(comm);
  nccl().CommDestroy(comm);
  return true;
}

}  // namespace db::nccl
