#include "shm/synchronizer.h"

#include <algorithm>

#include "common/futex.h"

namespace db::shm {
namespace {

// A sleeping rank looks this often whether the rank that it waits for is alive.
constexpr int64_t kSliceNs = 50'000'000;
// The same while messages are under way, which move only while a rank is awake.
constexpr int64_t kBusySliceNs = 200'000;
// The worker thread spins less: another thread of its process may compute.
constexpr int64_t kWorkerSpinNs = 20'000;
// After a spin without success, a rank skips spinning the next 1, 3, 7 … times, up to this many:
// the peer may be late regularly, or need the core on which this rank spins.
constexpr int32_t kMostSkippedSpins = 63;
constexpr int kPausesBetweenClocks = 32;

}  // namespace

Synchronizer::Synchronizer(Segment* segment, Peers* peers, int32_t rank, int64_t spin_ns)
    : segment_(segment),
      peers_(peers),
      rank_(rank),
      size_(segment->layout().ranks),
      spin_ns_(spin_ns) {}

uint32_t Synchronizer::begin(const Op& op) {
  op_ = &op;
  called_ = fingerprint(op, size_);
  return ++number_;
}

void Synchronizer::wake_sleepers(const std::atomic<uint32_t>& word) const {
  // The word was stored with memory_order_seq_cst, and a sleeper counts itself before it looks at
  // the word again, so one of the two sees the other.
  if (segment_->control(rank_).sleepers.load(std::memory_order_seq_cst) != 0) futex_wake(&word);
}

void Synchronizer::enter() {
  Entry& entry = segment_->entry(rank_, number_);
  entry.what.store(called_.what, std::memory_order_relaxed);
  entry.size.store(called_.size, std::memory_order_relaxed);
  entry.number.store(number_, std::memory_order_seq_cst);
  wake_sleepers(entry.number);
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
  std::atomic<uint32_t>& word = segment_->control(rank_).step;
  word.store(++step_, std::memory_order_seq_cst);
  wake_sleepers(word);
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
  return spin_until(word, wanted) ? Failure{} : sleep_until(word, wanted, peer);
}

int64_t Synchronizer::spin_ns(const Op& op) const {
  return op.blocking ? spin_ns_ : std::min(spin_ns_, kWorkerSpinNs);
}

bool Synchronizer::spin_until(const std::atomic<uint32_t>& word, uint32_t wanted) {
  const int64_t longest = spin_ns(*op_);
  if (longest == 0) return false;
  if (spin_skip_ > 0) {
    --spin_skip_;
    return false;
  }
  const int64_t begin = now_ns();
  do {
    for (int i = 0; i < kPausesBetweenClocks; ++i) {
      if (is_reached(word, wanted)) {
        spin_penalty_ = 0;
        return true;
      }
      cpu_pause();
    }
  } while (now_ns() - begin < longest && !is_aborted());
  spin_penalty_ = std::min(2 * spin_penalty_ + 1, kMostSkippedSpins);
  spin_skip_ = spin_penalty_;
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
  std::atomic<uint32_t>& sleepers = segment_->control(peer).sleepers;
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  Failure failure;
  bool slept = false;  // a rank that is only a little late costs no further system call
  while (true) {
    const uint32_t seen = word.load(std::memory_order_seq_cst);
    if (static_cast<int32_t>(seen - wanted) >= 0) break;
    failure = interruption(*op_, peer, slept);
    // What it did before it left or died may have reached memory meanwhile.
    if (!failure.ok() && (failure.status == DB_ERR_ABORTED || !is_reached(word, wanted))) break;
    failure = {};
    const bool pending = background_ != nullptr && background_->is_pending();
    const int64_t slice = pending ? kBusySliceNs : kSliceNs;
    const int64_t begin = now_ns();
    futex_wait(&word, seen, std::clamp<int64_t>(op_->deadline_ns - begin, 0, slice));
    slept = slept || now_ns() - begin >= kSliceNs / 2;
    if (pending) background_->advance();
  }
  sleepers.fetch_sub(1, std::memory_order_relaxed);
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
