#include "accelerator/preemption.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/log.h"
#include "base/process.h"

namespace coupler {
namespace {

constexpr const char* kWord = "told";
// How long the thread waits at a time; ending it may take as long.
constexpr auto kPatience = std::chrono::milliseconds(200);

std::atomic<bool> signalled{false};

void take_signal(int) { signalled.store(true, std::memory_order_relaxed); }

}  // namespace

Preemption::Preemption(std::shared_ptr<store::Store> store, int rank, int world_size,
                       std::chrono::nanoseconds timeout)
    : store_(std::move(store)), rank_(rank), world_size_(world_size), timeout_(timeout) {
  signalled.store(false, std::memory_order_relaxed);
  struct sigaction action {};
  action.sa_handler = take_signal;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGTERM, &action, &previous_);
  if (world_size_ > 1) thread_ = std::thread([this] { watch(); });
}

Preemption::~Preemption() {
  stop_.store(true);
  if (thread_.joinable()) thread_.join();
  ::sigaction(SIGTERM, &previous_, nullptr);
}

void Preemption::watch() {
  block_signals();
  try {
    while (!store_->get(kWord, kPatience)) {
      if (stop_.load()) return;
    }
    const std::lock_guard lock(mutex_);
    requested_ = true;
    store_->set(fmt::format("ended/{}", rank_), std::to_string(ended_));
  } catch (const Error& error) {
    // Without the store the job cannot be saved; the next use of the store reports why.
    log(LogLevel::kDebug, "checkpoint", error.what());
  }
}

bool Preemption::due() {
  const bool told = signalled.load(std::memory_order_relaxed);
  if (world_size_ == 1) return told;
  if (told && !published_) {
    published_ = true;
    store_->set(kWord, std::to_string(rank_));
  }
  {
    const std::lock_guard lock(mutex_);
    ++ended_;
    if (!requested_) return false;
  }
  if (!last_) {
    // The thread has published this rank's number, which does not count this step.
    const auto all = store_->get_ranks("ended", world_size_, timeout_);
    int64_t last = 0;
    for (size_t rank = 0; rank < all.size(); ++rank) {
      if (!all[rank]) {
        throw Error(ErrorCode::kTimeout,
                    fmt::format("the job received SIGTERM, but rank {} did not report how many "
                                "steps it has ended",
                                rank),
                    {.rank = static_cast<int>(rank), .subject = "SIGTERM"});
      }
      last = std::max(last, int64_t{std::stoll(*all[rank])});
    }
    last_ = last + 1;
  }
  return ended_ >= *last_;
}

}  // namespace coupler
