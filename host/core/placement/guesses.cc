#include "placement/guesses.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace coupler {
namespace {

struct Group {
  std::vector<size_t> units;
  uint64_t lives = 0, moves = 0;
  double copies = 0;
};

std::vector<Group> groups_of(const RunProblem& problem, const std::vector<RunUnit>& units) {
  std::vector<Group> groups;
  for (size_t u = 0; u < units.size(); ++u) {
    groups.resize(std::max(groups.size(), units[u].group + 1));
    Group& group = groups[units[u].group];
    group.units.push_back(u);
    group.lives += problem.units[u].lives;
    group.moves = std::max(group.moves, problem.units[u].moves);
    group.copies += problem.units[u].copies;
  }
  return groups;
}

// The bytes of copies saved per byte stored on an accelerator: highest for units used often.
double worth(const Group& group) {
  return group.lives == 0 ? 1e300 : group.copies / static_cast<double>(group.lives);
}

class Guesses {
 public:
  Guesses(const RunProblem& problem, const std::vector<RunUnit>& units)
      : problem_(problem), groups_(groups_of(problem, units)), count_(units.size()) {}

  std::vector<std::vector<size_t>> take() {
    std::vector<size_t> order(groups_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    const auto by = [&](const std::function<double(const Group&)>& key) {
      std::vector<size_t> result = order;
      std::stable_sort(result.begin(), result.end(),
                       [&](size_t a, size_t b) { return key(groups_[a]) > key(groups_[b]); });
      add(result);
    };
    add(order);
    add({order.rbegin(), order.rend()});
    by(worth);
    by([](const Group& g) { return static_cast<double>(g.lives); });
    by([](const Group& g) { return -static_cast<double>(g.lives); });
    // Every n-th group last or first: copies of groups that are far apart overlap with running the
    // others.
    for (size_t n = 2; n <= 16 && n < groups_.size(); ++n)
      for (const bool rest_last : {false, true}) {
        std::vector<size_t> result = order;
        std::stable_partition(result.begin(), result.end(),
                              [&](size_t g) { return (g % n == n - 1) == rest_last; });
        add(result);
      }
    return std::move(guesses_);
  }

 private:
  // One guess each with room for 0, 1 and 2 units' copies on the first accelerator.
  void add(const std::vector<size_t>& preferred) {
    for (const uint64_t copies : {0, 1, 2}) guesses_.push_back(filled(preferred, copies));
  }

  // Chooses the groups on accelerators by preference, then assigns the chosen ones in the order of
  // units, so that the run rarely changes the device.
  std::vector<size_t> filled(const std::vector<size_t>& preferred, uint64_t copies) const {
    std::vector<uint64_t> room = problem_.memory;
    uint64_t largest = 0;
    for (const Group& group : groups_) largest = std::max(largest, group.moves);
    if (problem_.cpu() > 0) room[0] -= std::min(room[0], copies * largest);
    const uint64_t total = std::accumulate(
        room.begin(), room.begin() + static_cast<std::ptrdiff_t>(problem_.cpu()), uint64_t{0});
    std::vector<bool> near(groups_.size());
    uint64_t taken = 0;
    for (const size_t g : preferred) {
      near[g] = taken + groups_[g].lives <= total;
      if (near[g]) taken += groups_[g].lives;
    }
    std::vector<size_t> lies(count_, problem_.disk());
    std::vector<size_t> left;
    size_t begin = 0;  // the device being filled
    for (size_t g = 0; g < groups_.size(); ++g)
      if (!near[g] || !put(g, 0, begin, problem_.cpu(), room, lies)) left.push_back(g);
    // The most valuable on the CPU, the others on the disk.
    std::stable_sort(left.begin(), left.end(),
                     [&](size_t a, size_t b) { return worth(groups_[a]) > worth(groups_[b]); });
    size_t cpu = problem_.cpu();
    for (const size_t g : left) put(g, cpu, cpu, problem_.disk(), room, lies);
    return lies;
  }

  // Puts g on the first device with room in [begin, end), else in [first, begin), and sets begin to
  // it.
  bool put(size_t g, size_t first, size_t& begin, size_t end, std::vector<uint64_t>& room,
           std::vector<size_t>& lies) const {
    for (size_t turn = first; turn < end; ++turn) {
      const size_t d = begin + (turn - first) < end ? begin + (turn - first) : begin + turn - end;
      if (room[d] < groups_[g].lives) continue;
      room[d] -= groups_[g].lives;
      for (const size_t unit : groups_[g].units) lies[unit] = d;
      begin = d;
      return true;
    }
    return false;
  }

  const RunProblem& problem_;
  std::vector<Group> groups_;
  size_t count_;
  std::vector<std::vector<size_t>> guesses_;
};

}  // namespace

std::vector<std::vector<size_t>> guessed_placements(const RunProblem& problem,
                                                    const std::vector<RunUnit>& units) {
  return Guesses(problem, units).take();
}

}  // namespace coupler
