#include "mpi/watchdog.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "common/thread.h"

namespace db::mpi {
namespace {

constexpr int kExitPeerLost = 4;
constexpr auto kPeriod = std::chrono::milliseconds(50);

// Never destroyed: the watchdog thread outlives main().
struct Registry {
  std::mutex mutex;
  std::vector<Watch*> watches;
  bool running = false;
};

Registry& registry() {
  static Registry* const instance = new Registry;
  return *instance;
}

[[noreturn]] void patrol() {
  for (;;) {
    std::this_thread::sleep_for(kPeriod);
    const int64_t now = now_ns();
    const std::lock_guard lock(registry().mutex);
    for (Watch* const watch : registry().watches) watch->check(now);
  }
}

[[noreturn]] void end_process(int32_t rank, const std::string& what, int64_t timeout_ns) {
  char text[512];
  const int length = std::snprintf(
      text, sizeof(text),
      "coupler mpi: error: rank %d: %s has not completed after %.3f s, its timeout. Another rank "
      "did not join it, is stopped or is gone. An MPI call cannot be canceled, so this process "
      "exits (exit code %d). Raise backend.timeout if the ranks are only slow.\n",
      rank, what.c_str(), static_cast<double>(timeout_ns) * 1e-9, kExitPeerLost);
  if (length > 0) {
    const auto bytes = std::min(static_cast<size_t>(length), sizeof(text) - 1);
    const ssize_t written = write(STDERR_FILENO, text, bytes);
    static_cast<void>(written);  // the exit code still reports the failure
  }
  _exit(kExitPeerLost);
}

}  // namespace

Watch::Watch() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.watches.push_back(this);
  if (all.running) return;
  start_thread(patrol).detach();
  all.running = true;
}

Watch::~Watch() {
  const std::lock_guard lock(registry().mutex);
  std::erase(registry().watches, this);
}

void Watch::begin(const char* name, const Op& op) {
  {
    const std::lock_guard lock(mutex_);
    name_ = name;
    op_ = op;
  }
  deadline_.store(op.deadline_ns, std::memory_order_release);
}

void Watch::begin(const char* name, int64_t timeout_ns) {
  Op op;
  op.timeout_ns = timeout_ns;
  op.deadline_ns = deadline_after(timeout_ns);
  begin(name, op);
}

void Watch::check(int64_t now) {
  const int64_t deadline = deadline_.load(std::memory_order_acquire);
  if (deadline == 0 || now < deadline) return;
  const std::lock_guard lock(mutex_);
  // The call may have ended, or another one started.
  if (deadline_.load(std::memory_order_acquire) != deadline) return;
  end_process(rank_, *name_ != 0 ? name_ : describe(op_), op_.timeout_ns);
}

void Watch::give_up(int32_t rank, const Op& op) { end_process(rank, describe(op), op.timeout_ns); }

bool anyone_inside() {
  const std::lock_guard lock(registry().mutex);
  return std::any_of(registry().watches.begin(), registry().watches.end(),
                     [](const Watch* watch) { return watch->inside(); });
}

}  // namespace db::mpi
