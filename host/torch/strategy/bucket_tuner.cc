#include "strategy/bucket_tuner.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/log.h"

namespace coupler {
namespace {

constexpr int64_t kMiB = 1 << 20;
// Below this size a second bucket costs more latency than it saves.
constexpr int64_t kOneBucketBytes = kMiB;
// Rounds through the candidates; the first one warms caches and connections and does not count.
constexpr size_t kRounds = 4;
// To replace one bucket, a plan must be this much faster, since measurements scatter.
constexpr double kMargin = 0.95;

std::string describe_plan(const BucketPlan& plan) {
  if (plan.cap_bytes == 0) return "one";
  return fmt::format("{} MiB {}", plan.cap_bytes / kMiB, plan.overlap ? "overlapped" : "in line");
}

}  // namespace

BucketTuner::BucketTuner(int64_t total_bytes, double cap_mb) {
  if (cap_mb > 0) {
    candidates_ = {{.cap_bytes = static_cast<int64_t>(cap_mb * kMiB), .overlap = true}};
  } else {
    candidates_ = {{.cap_bytes = 0, .overlap = false}};
    if (total_bytes > kOneBucketBytes) {
      candidates_.push_back({.cap_bytes = 1 * kMiB, .overlap = true});
    }
    if (total_bytes > 8 * kMiB) {
      candidates_.push_back({.cap_bytes = 4 * kMiB, .overlap = false});
      candidates_.push_back({.cap_bytes = 16 * kMiB, .overlap = true});
      candidates_.push_back({.cap_bytes = 16 * kMiB, .overlap = false});
    }
  }
  times_.resize(candidates_.size());
  settled_ = candidates_.size() == 1;
}

bool BucketTuner::report(double seconds, Communicator& comm) {
  if (settled_) return false;
  times_[current_].push_back(seconds);
  const size_t before = current_;
  current_ = (current_ + 1) % candidates_.size();
  if (current_ == 0 && times_.back().size() == kRounds) settle(comm);
  return before != current_;
}

void BucketTuner::settle(Communicator& comm) {
  settled_ = true;
  std::vector<double> medians;
  for (std::vector<double>& times : times_) {
    std::sort(times.begin() + 1, times.end());
    medians.push_back(times[1 + (times.size() - 1) / 2]);
  }
  db_op op{};
  op.kind = DB_ALL_REDUCE;
  op.dtype = DB_F64;
  op.reduce = DB_MAX;
  op.memory = DB_MEMORY_HOST;
  op.send = op.recv = medians.data();
  op.count = medians.size();
  comm.run(op);
  const auto best = std::min_element(medians.begin(), medians.end());
  current_ = *best < kMargin * medians[0] ? static_cast<size_t>(best - medians.begin()) : 0;
  if (log_enabled(LogLevel::kInfo, "strategy")) {
    std::string text = "gradient buckets, milliseconds for backward and reduction:";
    for (size_t i = 0; i < candidates_.size(); ++i) {
      text += fmt::format(" {} {:.2f}{}", describe_plan(candidates_[i]), medians[i] * 1e3,
                          i == current_ ? " (chosen);" : ";");
    }
    log(LogLevel::kInfo, "strategy", text);
  }
  times_.clear();
}

}  // namespace coupler
