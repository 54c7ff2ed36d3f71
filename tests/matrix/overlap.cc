// Many operations in flight at once, waited for in reverse order, with blocking ones in between.
#include <fmt/format.h>

#include "rank.h"
#include "simple_ops.h"

namespace coupler::matrix {

int overlap(Rank& rank) {
  const auto communicator = rank.connect();
  const auto world_size = static_cast<float>(rank.world_size());
  constexpr size_t kWorks = 24;
  for (int round = 0; round < 10; ++round) {
    std::vector<Values<float>> buffers;
    for (size_t i = 0; i < kWorks; ++i) buffers.emplace_back(1 + i * 997, static_cast<float>(i));
    std::vector<comm::Work> works;
    for (size_t i = 0; i < kWorks; ++i) {
      works.push_back(communicator->submit(all_reduce(buffers[i])));
      if (i % 8 == 7) {
        Values<float> blocking(17, 1.0f);
        communicator->run(all_reduce(blocking));
        check(blocking == Values<float>(17, world_size), "the blocking sum is wrong");
      }
    }
    while (!works.empty()) {
      works.back().wait();
      works.pop_back();
    }
    for (size_t i = 0; i < kWorks; ++i) {
      check(buffers[i] == Values<float>(1 + i * 997, static_cast<float>(i) * world_size),
            fmt::format("sum {} of round {} is wrong", i, round));
    }
  }
  return 0;
}

}  // namespace coupler::matrix
