// Sub-groups: by color, ranked by key, none for a negative color. They work independently, can be
// split again, and outlive their parent.
#include <fmt/format.h>

#include <algorithm>

#include "rank.h"
#include "simple_ops.h"

namespace coupler::matrix {
namespace {

void sum_of_ranks(comm::Communicator& group, int mine, float expected, const char* what) {
  for (int step = 0; step < 20; ++step) {
    Values<float> values(static_cast<size_t>(step) * 50 + 1, static_cast<float>(mine));
    if (step % 2 == 0) {
      group.run(all_reduce(values));
    } else {
      group.submit(all_reduce(values)).wait();
    }
    check(std::all_of(values.begin(), values.end(), [&](float v) { return v == expected; }),
          fmt::format("the sum in {} is {}, expected {}", what, values[0], expected));
  }
}

}  // namespace

int split(Rank& rank) {
  auto world = rank.connect();
  const int me = rank.rank(), size = rank.world_size();
  // Even and odd ranks, in reverse order.
  const auto parity = world->split(me % 2, -me, "parity");
  float sum = 0;
  int after = 0, members = 0;
  for (int other = me % 2; other < size; other += 2) {
    sum += static_cast<float>(other);
    after += other > me ? 1 : 0;
    ++members;
  }
  check(parity->rank() == after && parity->size() == members,
        fmt::format("rank {} is {} of {} in its group, expected {} of {}", me, parity->rank(),
                    parity->size(), after, members));
  sum_of_ranks(*parity, me, sum, "the group by parity");

  // All ranks except the last, which gets no communicator.
  const bool last = size > 1 && me == size - 1;
  const auto front = world->split(last ? -1 : 5, me, "front");
  check((front == nullptr) == last,
        "a negative color got a communicator, or another color got none");
  if (front) {
    float front_sum = 0;
    for (int other = 0; other < std::max(1, size - 1); ++other)
      front_sum += static_cast<float>(other);
    sum_of_ranks(*front, me, front_sum, "the front group");
  }

  // The same group twice, whose operations do not affect each other; then a split of a split.
  const auto first = world->split(0, me, "first");
  const auto second = world->split(0, me, "second");
  const float all = static_cast<float>(size * (size - 1)) / 2;
  Values<float> a(1000, static_cast<float>(me)), b(10, static_cast<float>(me));
  comm::Work slow = first->submit(all_reduce(a));
  comm::Work quick = second->submit(all_reduce(b));
  quick.wait();
  slow.wait();
  check(a[999] == all && b[9] == all, "two groups of the same ranks affect each other");
  const auto nested = first->split(me % 2, me, "nested");
  world.reset();
  sum_of_ranks(*nested, me, sum, "the nested group");
  return 0;
}

}  // namespace coupler::matrix
