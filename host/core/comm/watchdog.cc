#include "comm/watchdog.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"

namespace coupler::comm {
namespace {

constexpr auto kPeriod = std::chrono::milliseconds(30);
constexpr auto kSleepAfter = std::chrono::seconds(1);
// Longer than any healthy exchange that a stalled pair of ranks could still complete.
constexpr auto kStall = std::chrono::milliseconds(300);
// The same if a rank left in an orderly way, so that only the program can be wrong.
constexpr auto kLeft = std::chrono::seconds(2);
// How long a thread may take to leave the backend and report an error itself, on a busy machine.
constexpr auto kLeave = std::chrono::milliseconds(500);
constexpr auto kLeavePoll = std::chrono::milliseconds(10);
constexpr int kExitPeer = 4;

}  // namespace

Watchdog::Watchdog(CommunicatorState& state) : state_(state), thread_([this] { run(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  condition_.notify_all();
  thread_.join();
}

void Watchdog::wake() {
  {
    const std::lock_guard lock(mutex_);
    asleep_.store(false, std::memory_order_seq_cst);
  }
  condition_.notify_all();
}

bool Watchdog::busy() const {
  return CurrentOperation::is_inside(state_.current.version()) ||
         state_.pending_count.load(std::memory_order_seq_cst) != 0;
}

void Watchdog::run() {
  Clock::time_point active = Clock::now();
  uint64_t version = 0;
  std::unique_lock lock(mutex_);
  while (!stop_) {
    const Clock::time_point now = Clock::now();
    const uint64_t current = state_.current.version();
    if (current != version || busy()) active = now;
    version = current;
    if (now - active > kSleepAfter) {
      lock.unlock();
      if (state_.notifier->through_store())
        check_store(now, kStall);  // shows this rank's operations
      lock.lock();
      asleep_.store(true, std::memory_order_seq_cst);
      if (busy() || stop_) {
        asleep_.store(false, std::memory_order_seq_cst);
      } else {
        condition_.wait(lock, [&] { return stop_ || !asleep_.load(std::memory_order_relaxed); });
      }
      active = Clock::now();
      continue;
    }
    condition_.wait_for(lock, kPeriod, [&] { return stop_; });
    if (stop_) break;
    lock.unlock();
    // Through the store this costs a message: only if this rank seems to be doing something else.
    if (!state_.notifier->through_store() || now - active > kStall) publish_place();
    check(Clock::now());
    lock.lock();
  }
}

// An absent rank is in its own code: it publishes in advance where that is.
void Watchdog::publish_place() {
  std::string place = CallSite::last();
  if (store_failed_ || place == place_) return;
  place_ = std::move(place);
  try {
    state_.notifier->publish_place(place_);
  } catch (const std::exception& thrown) {
    log(LogLevel::kDebug, "comm", thrown.what());  // only messages need it
  }
}

std::optional<Watchdog::Stuck> Watchdog::oldest(Clock::time_point now) {
  std::optional<Stuck> result;
  const uint64_t version = state_.current.version();
  if (version != last_version_) {
    last_version_ = version;
    version_since_ = now;
  }
  if (const auto operation = state_.current.of(version)) result = Stuck{*operation, version_since_};
  if (state_.pending_count.load(std::memory_order_relaxed) == 0) return result;
  const std::lock_guard lock(state_.pending_mutex);
  for (const PendingOperation* pending : state_.pending) {
    if (result && result->since <= pending->start) continue;
    // A complete operation that is merely not waited for yet is not stuck.
    if (now - pending->start > kStall &&
        state_.functions->test(pending->request, nullptr) != DB_IN_PROGRESS) {
      continue;
    }
    result = Stuck{pending->operation, pending->start};
  }
  return result;
}

void Watchdog::check(Clock::time_point now) {
  state_.release_finished();
  if (!state_.dead.load(std::memory_order_acquire)) {
    if (state_.recorder && state_.recorder->has_shared_error()) {
      state_.end_by(*state_.recorder->shared_error());
    } else if (const std::optional<Stuck> stuck = oldest(now)) {
      const Clock::duration age = now - stuck->since;
      check_deadline(*stuck, age);
      check_peers(*stuck, now);
      if (state_.recorder) {
        check_recorder(*stuck, age);
      } else if (age > kStall) {
        check_store(now, age);
      }
    }
  }
  if (state_.dead.load(std::memory_order_acquire)) free_stuck_threads();
}

void Watchdog::check_deadline(const Stuck& stuck, Clock::duration age) {
  // A backend that can abort enforces its own deadline; this is for one that never returns.
  const auto limit = state_.can_abort
                         ? state_.timeout + state_.timeout / 2 + std::chrono::seconds(2)
                         : state_.timeout;
  if (age < limit) return;
  state_.end(state_.timeout_error(stuck.operation, {}));
}

void Watchdog::check_peers(const Stuck& stuck, Clock::time_point now) {
  const auto lost = state_.lost_member();
  if (!lost) return;
  // What a rank sent before it ended or left may still be in flight, and may be all that is needed.
  const auto patience = lost->loss.reason == store::PeerLoss::Reason::kLeft ? kLeft
                        : lost->loss.reason <= store::PeerLoss::Reason::kGone
                            ? kStall
                            : Clock::duration::zero();
  if (now - std::max(stuck.since, lost->loss.when) < patience) return;
  state_.end(state_.peer_error(stuck.operation, *lost));
}

void Watchdog::check_recorder(const Stuck& stuck, Clock::duration age) {
  if (age < kStall || stuck.operation.peer >= 0) return;
  const int refuser = state_.recorder->refused_by(stuck.operation.sequence);
  if (refuser < 0 || refuser == state_.rank) return;
  state_.end(
      Error(ErrorCode::kMismatch,
            fmt::format("{}: rank {}'s backend refused that operation, so it did not start there",
                        state_.context(stuck.operation), refuser),
            {.rank = refuser, .subject = state_.name, .hint = "look at that rank's error"}));
}

void Watchdog::check_store(Clock::time_point now, Clock::duration age) {
  if (store_failed_ || age < kStall || now - store_checked_ < kStall) return;
  store_checked_ = now;
  try {
    if (const std::optional<SharedError> shared_error = state_.notifier->shared_error()) {
      state_.end_by(*shared_error);
      return;
    }
    state_.notifier->publish_operations();
    if (const std::optional<SharedError> shared_error = state_.notifier->find_disagreement()) {
      state_.end(Error(static_cast<ErrorCode>(shared_error->code),
                       fmt::format("communicator '{}', {}", state_.name, shared_error->text),
                       {.rank = shared_error->failed_rank,
                        .subject = state_.name,
                        .hint = hint_for(ErrorCode::kMismatch)}));
    }
  } catch (const std::exception& thrown) {
    store_failed_ = true;              // deadlines still work without it
    if (state_.lost_member()) return;  // the reason, which is reported
    log(LogLevel::kWarning, "comm",
        fmt::format("communicator '{}': the store no longer answers, so an operation on which the "
                    "ranks disagree ends only at its deadline: {}",
                    state_.name, thrown.what()));
  }
}

bool Watchdog::anything_pending() const {
  const std::lock_guard lock(state_.pending_mutex);
  return std::any_of(state_.pending.begin(), state_.pending.end(), [&](const auto* pending) {
    return state_.functions->test(pending->request, nullptr) == DB_IN_PROGRESS;
  });
}

void Watchdog::free_stuck_threads() {
  if (state_.can_abort || !busy()) return;
  const uint64_t version = state_.current.version();
  const auto is_stuck = [&] {
    const bool inside = CurrentOperation::is_inside(version) && version == state_.current.version();
    return inside || anything_pending();
  };
  for (const auto until = Clock::now() + kLeave; Clock::now() < until;) {
    if (!is_stuck()) return;
    std::this_thread::sleep_for(kLeavePoll);
  }
  if (!is_stuck()) return;
  report_error(fmt::format("{}\n  the backend '{}' cannot end the operation, so the process ends",
                           state_.first_error()->what(), state_.backend->plugin().name()));
  _exit(kExitPeer);
}

}  // namespace coupler::comm
