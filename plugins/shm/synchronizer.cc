#include "shm/synchronizer.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "common/futex.h"

namespace db::shm {
namespace {

// A sleeping rank looks this often whether the rank that it waits for is alive.
constexpr int64_t kSliceNs = 50'000'000;
// The same while messages are under way, which move only while a rank is awake.
constexpr int64_t kBusySliceNs = 200'000;
// The worker thread spins less: another thread of its process may compute.
constexpr int64_t kWorkerSpinNs = 20'000;
// After it stayed awake without success, a rank sleeps at once the next 1, 3, 7 … times, up to this
// many: the peer may be late regularly, or need the core on which this rank spins.
constexpr int32_t kMostSkipped = 63;
constexpr int kPausesBetweenClocks = 32;
// A rank that yielded its core and has not got it back after this long shares the cores with
// programs, or ranks, that compute. Each further yield would cost it another turn of theirs, so it
// yields no more for a while; a rank that sleeps has its turn when it wakes.
constexpr int64_t kLostNs = 1'000'000;
constexpr int64_t kContendedNs = 100'000'000;

}  // namespace

Synchronizer::Synchronizer(Segment* segment, Peers* peers, int32_t rank, const Patience& patience)
    : segment_(segment),
      peers_(peers),
      rank_(rank),
      size_(segment->layout().ranks),
      patience_(patience) {}

uint32_t Synchronizer::begin(const Op& op) {
  op_ = &op;
  called_ = fingerprint(op, size_);
  return ++number_;
}

template <class WordOf>
void Synchronizer::wake_if_last(uint32_t wanted, const WordOf& word_of) const {
  // Words are stored with memory_order_seq_cst, and a sleeper counts itself before it looks at them
  // again, so one of the two sees the other. Of two ranks that come at once, one sees both.
  Head& head = segment_->head();
  if (head.sleepers.load(std::memory_order_seq_cst) == 0) return;
  for (int32_t rank = 0; rank < size_; ++rank)
    if (!is_reached(word_of(rank), wanted, std::memory_order_seq_cst)) return;
  head.gathered.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(&head.gathered);
}

void Synchronizer::enter() {
  Entry& entry = segment_->entry(rank_, number_);
  entry.what.store(called_.what, std::memory_order_relaxed);
  entry.size.store(called_.size, std::memory_order_relaxed);
  entry.number.store(number_, std::memory_order_seq_cst);
  wake_if_last(number_, [this](int32_t rank) -> const std::atomic<uint32_t>& {
    return segment_->entry(rank, number_).number;
  });
}

Failure Synchronizer::await_entries() {
  for (int32_t i = 1; i < size_; ++i) {
    const int32_t peer = (rank_ + i) % size_;
    const Entry& entry = segment_->entry(peer, number_);
    if (!is_reached(entry.number, number_)) {
      if (Failure failure = wait(entry.number, number_, peer); !failure.ok()) return failure;
    }
    const Fingerprint theirs{entry.what.load(std::memory_order_relaxed),
                             entry.size.load(std::memory_order_relaxed)};
    if (!(theirs == called_)) return disagreement(number_, rank_, called_, peer, theirs);
  }
  return {};
}

uint32_t Synchronizer::publish() {
  segment_->control(rank_).step.store(++step_, std::memory_order_seq_cst);
  wake_if_last(step_, [this](int32_t rank) -> const std::atomic<uint32_t>& {
    return segment_->control(rank).step;
  });
  return step_;
}

Failure Synchronizer::await(uint32_t step) {
  for (int32_t i = 1; i < size_; ++i) {
    const int32_t peer = (rank_ + i) % size_;
    const std::atomic<uint32_t>& word = segment_->control(peer).step;
    if (is_reached(word, step)) continue;
    if (Failure failure = wait(word, step, peer); !failure.ok()) return failure;
  }
  return {};
}

Failure Synchronizer::require_all_present() const {
  std::atomic_thread_fence(std::memory_order_acquire);  // the reads come first
  for (int32_t peer = 0; peer < size_; ++peer)
    if (peer != rank_ && peers_->has_left(peer))
      return is_aborted() ? Failure::make(DB_ERR_ABORTED, "abort was called", DB_ERROR_COMM_DEAD)
                          : peers_->lost(peer);
  return {};
}

Failure Synchronizer::wait(const std::atomic<uint32_t>& word, uint32_t wanted, int32_t peer) {
  return is_soon_reached(word, wanted) ? Failure{} : sleep_until(word, wanted, peer);
}

int64_t Synchronizer::awake_ns(const Op& op) const {
  return op.blocking ? patience_.ns : std::min(patience_.ns, kWorkerSpinNs);
}

int64_t Synchronizer::spin_ns(const Op& op) const { return patience_.yields ? 0 : awake_ns(op); }

bool Synchronizer::is_soon_reached(const std::atomic<uint32_t>& word, uint32_t wanted) {
  const int64_t longest = awake_ns(*op_);
  if (longest == 0) return false;
  if (skips_ > 0) {
    --skips_;
    return false;
  }
  const bool reached =
      patience_.yields ? yield_until(word, wanted, longest) : spin_until(word, wanted, longest);
  penalty_ = reached ? 0 : std::min(2 * penalty_ + 1, kMostSkipped);
  skips_ = penalty_;
  return reached;
}

bool Synchronizer::spin_until(const std::atomic<uint32_t>& word, uint32_t wanted,
                              int64_t longest) const {
  const int64_t begin = now_ns();
  do {
    for (int i = 0; i < kPausesBetweenClocks; ++i) {
      if (is_reached(word, wanted)) return true;
      cpu_pause();
    }
  } while (now_ns() - begin < longest && !is_aborted());
  return false;
}

bool Synchronizer::yield_until(const std::atomic<uint32_t>& word, uint32_t wanted,
                               int64_t longest) {
  const int64_t begin = now_ns();
  if (begin < contended_until_ns_) return false;
  for (int64_t now = begin; now - begin < longest && !is_aborted();) {
    sched_yield();
    const int64_t before = std::exchange(now, now_ns());
    if (now - before > kLostNs) contended_until_ns_ = now + kContendedNs;
    if (is_reached(word, wanted)) return true;
  }
  return false;
}

Failure Synchronizer::interruption(const Op& op, int32_t peer, bool asks_system) const {
  if (is_aborted()) return Failure::make(DB_ERR_ABORTED, "abort was called", DB_ERROR_COMM_DEAD);
  if (peers_->has_cause() || peers_->has_left(peer) || (asks_system && peers_->has_died(peer)))
    return peers_->lost(peer);
  if (now_ns() < op.deadline_ns) return {};
  return Failure::make(DB_ERR_TIMEOUT, "", DB_ERROR_COMM_DEAD, peer);
}

Failure Synchronizer::sleep_until(const std::atomic<uint32_t>& word, uint32_t wanted,
                                  int32_t peer) {
  Head& head = segment_->head();
  head.sleepers.fetch_add(1, std::memory_order_seq_cst);
  Failure failure;
  bool slept = false;  // a rank that is only a little late costs no further system call
  while (true) {
    const uint32_t seen = head.gathered.load(std::memory_order_seq_cst);
    if (is_reached(word, wanted, std::memory_order_seq_cst)) break;
    failure = interruption(*op_, peer, slept);
    // What it did before it left or died may have reached memory meanwhile.
    if (!failure.ok() && (failure.status == DB_ERR_ABORTED || !is_reached(word, wanted))) break;
    failure = {};
    const bool pending = background_ != nullptr && background_->is_pending();
    const int64_t slice = pending ? kBusySliceNs : kSliceNs;
    const int64_t begin = now_ns();
    futex_wait(&head.gathered, seen, std::clamp<int64_t>(op_->deadline_ns - begin, 0, slice));
    slept = slept || now_ns() - begin >= kSliceNs / 2;
    if (pending) background_->advance();
  }
  head.sleepers.fetch_sub(1, std::memory_order_relaxed);
  return failure.status == DB_ERR_TIMEOUT ? too_late(peer) : failure;
}

// Names the ranks that have not entered the collective, or else those that are stuck in it.
Failure Synchronizer::too_late(int32_t peer) const {
  std::vector<int32_t> late;
  for (int32_t rank = 0; rank < size_; ++rank)
    if (rank != rank_ && !is_reached(segment_->entry(rank, number_).number, number_))
      late.push_back(rank);
  for (int32_t rank = 0; rank < size_ && late.empty(); ++rank)
    if (rank != rank_ && !is_reached(segment_->control(rank).step, step_)) late.push_back(rank);
  if (late.empty()) late.push_back(peer);
  std::string names;
  for (const int32_t rank : late)
    names += (names.empty() ? "" : ", ") + std::to_string(rank) + peers_->state_of(rank);
  return Failure::make(DB_ERR_TIMEOUT,
                       describe(*op_) + " did not complete within " +
                           std::to_string(op_->timeout_ns / 1'000'000) + " ms: rank" +
                           (late.size() > 1 ? "s " : " ") + names + " did not take part in time",
                       DB_ERROR_COMM_DEAD, late.front());
}

void Synchronizer::abort() {
  aborted_.store(true, std::memory_order_release);
  peers_->leave();
}

}  // namespace db::shm
