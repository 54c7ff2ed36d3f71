#include "shm/peers.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <utility>

#include "common/futex.h"
#include "common/op.h"

namespace db::shm {
namespace {

constexpr int64_t kCauseNs = 10'000'000;  // to write a cause takes microseconds

}  // namespace

Lifeline open_lifeline() {
  Lifeline lifeline;
  lifeline.shown = Descriptor(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  if (lifeline.shown) return lifeline;
  int ends[2] = {-1, -1};  // an older kernel, or a seccomp profile that forbids it
  if (pipe2(ends, O_CLOEXEC) != 0) return {};
  lifeline.shown = Descriptor(ends[0]);
  lifeline.kept = Descriptor(ends[1]);
  return lifeline;
}

Peers::Peers(Segment* segment, int32_t rank, std::vector<Descriptor> lifelines, Descriptor kept)
    : segment_(segment), rank_(rank), lifelines_(std::move(lifelines)), kept_(std::move(kept)) {}

bool Peers::has_died(int32_t rank) const {
  pollfd lifeline{lifelines_[static_cast<size_t>(rank)].get(), POLLIN, 0};
  return poll(&lifeline, 1, 0) == 1;
}

std::string Peers::state_of(int32_t rank) const {
  // The lifeline shows the process's number as this process sees it: none, or 0, if it is a pipe or
  // the process is in a PID namespace that this one cannot see.
  const int fd = lifelines_[static_cast<size_t>(rank)].get();
  std::ifstream info("/proc/self/fdinfo/" + std::to_string(fd));
  std::string word;
  int64_t pid = 0;
  while (info >> word)
    if (word == "Pid:") info >> pid;
  if (pid <= 0) return "";
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(stat, text);
  const size_t end = text.rfind(") ");  // of the program's name
  const bool stopped =
      end != std::string::npos && end + 2 < text.size() && (text[end + 2] | 0x20) == 't';
  return stopped ? " (its process " + std::to_string(pid) + " is stopped)" : "";
}

Failure Peers::settle(const Failure& seen) const {
  Cause& cause = segment_->cause();
  uint32_t state = 0;
  if (cause.state.compare_exchange_strong(state, kReporting)) {
    cause.status = seen.status;
    cause.failed_rank = seen.failed_rank;
    cause.reporter = rank_;
    copy_text(cause.text.data(), cause.text.size(), seen.message.c_str());
    cause.state.store(kReported, std::memory_order_release);
    return seen;
  }
  for (const int64_t until = now_ns() + kCauseNs; !has_cause() && now_ns() < until;) cpu_pause();
  if (!has_cause()) return seen;  // the rank that reported it died while doing so
  // This rank knows better if others reported it dead.
  if (cause.failed_rank == rank_ && cause.status == DB_ERR_PEER_LOST) return seen;
  if (cause.reporter == rank_) return seen;
  Failure agreed = seen;
  agreed.status = cause.status;
  agreed.failed_rank = cause.failed_rank;
  agreed.flags |= uint32_t{DB_ERROR_REMOTE} | uint32_t{DB_ERROR_COMM_DEAD};
  agreed.message = std::string(cause.text.data()) + " (first seen by rank " +
                   std::to_string(cause.reporter) + ")";
  return agreed;
}

void Peers::leave() const {
  segment_->control(rank_).left.store(1, std::memory_order_seq_cst);
  Head& head = segment_->head();
  head.gathered.fetch_add(1, std::memory_order_seq_cst);  // for who has just looked at left
  futex_wake(&head.gathered);
  for (int32_t rank = 0; rank < segment_->layout().ranks; ++rank)
    futex_wake(&segment_->control(rank).bell);
}

Failure Peers::lost(int32_t rank) const {
  const std::string who = "rank " + std::to_string(rank);
  const int32_t pid = segment_->control(rank).pid.load(std::memory_order_relaxed);
  // A rank that left may have ended since, which is not why it is gone.
  if (!has_left(rank) && has_died(rank))
    return Failure::make(DB_ERR_PEER_LOST,
                         who + " is gone: its process " + std::to_string(pid) + " has ended",
                         DB_ERROR_COMM_DEAD, rank);
  return Failure::make(
      DB_ERR_PEER_LOST,
      who + " is gone: it has left the communicator, after an error of its own, abort or destroy",
      DB_ERROR_COMM_DEAD, rank);
}

}  // namespace db::shm
