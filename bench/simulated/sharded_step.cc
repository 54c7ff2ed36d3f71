#include <deque>

#include "schedules.h"

namespace coupler::bench::simulated {
namespace {

constexpr uint64_t kAhead = 2;  // units, as with prefetch = 2

}  // namespace

void run_sharded_step(Rank& rank, const ShardedStep& step) {
  // Units of a forward and of a backward are alike, so a step with fewer units repeats less.
  const uint64_t units = rank.repeats(step.units);
  const auto parts = even_parts({0, step.unit_bytes / kElementBytes}, rank.size());
  const auto schedule = make_schedule(step.schedule, rank, false);
  Worker communication(rank);
  const auto gather = [&] { return communication.post([&] { schedule->all_gather(parts); }); };
  std::deque<simgrid::s4u::SemaphorePtr> gathers;
  simgrid::s4u::SemaphorePtr reduced;
  for (const bool is_backward : {false, true}) {
    for (uint64_t unit = 0; unit < units + kAhead; ++unit) {
      if (unit < units) gathers.push_back(gather());
      if (unit < kAhead) continue;
      gathers.front()->acquire();
      gathers.pop_front();
      rank.compute(step.forward_seconds * (is_backward ? 2 : 1));
      if (is_backward) reduced = communication.post([&] { schedule->reduce_scatter(parts); });
    }
  }
  if (reduced) reduced->acquire();
}

}  // namespace coupler::bench::simulated
