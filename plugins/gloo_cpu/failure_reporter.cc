#include "gloo_cpu/failure_reporter.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/op.h"

namespace db::gloo_cpu {
namespace {

constexpr int64_t kCauseWaitNs = 2'000'000'000;
constexpr int64_t kLateWaitNs = 100'000'000;

// The head of the value under "cause"; the message follows.
struct Cause {
  int32_t status = 0;
  int32_t failed_rank = -1;
  int32_t reporter = -1;
};

std::string timeout_key(uint64_t sequence, int32_t rank) {
  return "late/" + std::to_string(sequence) + "/" + std::to_string(rank);
}

}  // namespace

FailureReporter::FailureReporter(BootstrapStore store, int32_t rank, int32_t size)
    : store_(std::move(store)), rank_(rank), size_(size) {}

Failure FailureReporter::settle(const Failure& seen) const {
  int64_t turn = 0;
  if (!store_.add("failures", 1, &turn).ok()) return seen;
  if (turn == 1) {
    const Cause cause{seen.status, seen.failed_rank, rank_};
    std::string value(reinterpret_cast<const char*>(&cause), sizeof cause);
    // If the store fails now, the others fall back on what they observed themselves.
    (void)store_.set("cause", value + seen.message);
    return seen;
  }
  std::string value;
  if (!store_.get("cause", kCauseWaitNs, &value).ok() || value.size() < sizeof(Cause)) return seen;
  Cause cause;
  std::memcpy(&cause, value.data(), sizeof cause);
  // This rank knows better if others reported it dead.
  if (cause.failed_rank == rank_ && cause.status == DB_ERR_PEER_LOST) return seen;
  Failure agreed = seen;
  agreed.status = cause.status;
  agreed.failed_rank = cause.failed_rank;
  agreed.flags |= DB_ERROR_REMOTE;
  agreed.message =
      value.substr(sizeof cause) + " (first seen by rank " + std::to_string(cause.reporter) + ")";
  return agreed;
}

void FailureReporter::report_timeout(uint64_t sequence) const {
  // Only improves the other ranks' messages, so a failure is ignored.
  (void)store_.set(timeout_key(sequence, rank_), "1");
}

std::vector<int32_t> FailureReporter::ranks_without_timeout(uint64_t sequence) const {
  const int64_t until = now_ns() + kLateWaitNs;
  std::vector<int32_t> ranks;
  std::string value;
  for (int32_t peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const Failure failure =
        store_.get(timeout_key(sequence, peer), std::max<int64_t>(until - now_ns(), 0), &value);
    if (!failure.ok()) ranks.push_back(peer);
  }
  return ranks;
}

}  // namespace db::gloo_cpu
