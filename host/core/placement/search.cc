#include "placement/search.h"

#include <algorithm>
#include <limits>

#include "placement/guesses.h"

namespace coupler {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// Work limits for improving and for branch and bound, in forecasts × units: tenths of a second.
constexpr size_t kImproveWork = 10'000'000;
constexpr size_t kExactWork = 3'000'000;

class Search {
 public:
  Search(const RunProblem& problem, const std::vector<RunUnit>& units) : problem_(problem) {
    for (size_t u = 0; u < units.size(); ++u) {
      groups_.resize(std::max(groups_.size(), units[u].group + 1));
      groups_[units[u].group].push_back(u);
    }
    used_.resize(problem.devices.size());
    best_.lies.assign(units.size(), problem.disk());
    best_seconds_ = seconds_of(best_.lies);
  }

  void offer(const std::vector<size_t>& lies) {
    const double seconds = seconds_of(lies);
    if (seconds >= best_seconds_) return;
    best_seconds_ = seconds;
    best_.lies = lies;
  }

  // Moves single groups and swaps pairs while that helps.
  void improve() {
    work_ = kImproveWork;
    for (bool better = true; better && work_ > 0;) {
      better = false;
      for (size_t g = 0; g < groups_.size() && work_ > 0; ++g) {
        for (size_t d = 0; d < problem_.devices.size(); ++d)
          better = try_change(g, d, g, d) || better;
        for (size_t other = g + 1; other < groups_.size() && work_ > 0; ++other)
          better = try_change(g, device_of(other), other, device_of(g)) || better;
      }
    }
  }

  void prove() {
    // rest_[g]: the least time in which group g and all that follow can run, on any device.
    rest_.assign(groups_.size() + 1, 0);
    const double fastest = *std::max_element(problem_.rate.begin(), problem_.rate.end());
    for (size_t g = groups_.size(); g-- > 0;) rest_[g] = rest_[g + 1] + reads(g) / fastest;
    work_ = kExactWork;
    lies_ = best_.lies;
    branch(0, 0);
    best_.exact = work_ > 0;
  }

  std::optional<SearchResult> result() {
    if (best_seconds_ == kNever) return std::nullopt;
    best_.forecast = forecast(problem_, best_.lies);
    return best_;
  }

 private:
  double seconds_of(const std::vector<size_t>& lies) {
    work_ -= std::min(work_, lies.size() + 1);
    const Forecast result = forecast(problem_, lies);
    return result.fits ? result.seconds : kNever;
  }

  size_t device_of(size_t group) const { return best_.lies[groups_[group].front()]; }
  double reads(size_t group) const {
    double sum = 0;
    for (const size_t unit : groups_[group]) sum += problem_.units[unit].reads;
    return sum;
  }
  void put(std::vector<size_t>& lies, size_t group, size_t device) const {
    for (const size_t unit : groups_[group]) lies[unit] = device;
  }

  bool try_change(size_t a, size_t to_a, size_t b, size_t to_b) {
    const size_t from_a = device_of(a), from_b = device_of(b);
    if (from_a == to_a && from_b == to_b) return false;
    put(best_.lies, a, to_a);
    put(best_.lies, b, to_b);
    const double seconds = seconds_of(best_.lies);
    // Ignores differences in the last digits; chasing them could loop forever.
    if (seconds < best_seconds_ * (1 - 1e-12)) {
      best_seconds_ = seconds;
      return true;
    }
    put(best_.lies, a, from_a);
    put(best_.lies, b, from_b);
    return false;
  }

  // The groups before g have a device and take at least `least` seconds to run.
  void branch(size_t g, double least) {
    if (work_ == 0 || least + rest_[g] >= best_seconds_) return;
    if (g == groups_.size()) {
      const double seconds = seconds_of(lies_);
      if (seconds >= best_seconds_) return;
      best_seconds_ = seconds;
      best_.lies = lies_;
      return;
    }
    uint64_t bytes = 0;
    for (const size_t unit : groups_[g]) bytes += problem_.units[unit].lives;
    const double fastest_here =
        reads(g) / *std::max_element(problem_.rate.begin(), problem_.rate.end());
    for (size_t d = 0; d < problem_.devices.size(); ++d) {
      if (d != problem_.disk() && used_[d] + bytes > problem_.memory[d]) continue;
      put(lies_, g, d);
      used_[d] += bytes;
      // Offloaded units run on the main device or on the CPU.
      branch(g + 1, least + (d < problem_.cpu() ? reads(g) / problem_.rate[d] : fastest_here));
      used_[d] -= bytes;
      work_ -= std::min<size_t>(work_, 1);
    }
  }

  const RunProblem& problem_;
  std::vector<std::vector<size_t>> groups_;  // units
  std::vector<size_t> lies_;
  std::vector<uint64_t> used_;
  std::vector<double> rest_;
  size_t work_ = kImproveWork;
  SearchResult best_;
  double best_seconds_ = kNever;
};

}  // namespace

std::optional<SearchResult> search_placement(const RunProblem& problem,
                                             const std::vector<RunUnit>& units,
                                             const std::vector<std::vector<size_t>>& starts) {
  Search search(problem, units);
  for (const auto& start : starts) search.offer(start);
  for (const auto& guess : guessed_placements(problem, units)) search.offer(guess);
  search.improve();
  search.prove();
  return search.result();
}

}  // namespace coupler
