// Contest: several implementations of an all_reduce (sum of floats, in place) measured in the same
// processes, in turns: in every round each of them performs a number of operations on one buffer,
// beginning with another one each time. Collective; used by one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace coupler::bench {

// Makes the operation for one buffer; whatever can be prepared ahead is, on every side.
struct Contender {
  std::string name;
  std::function<std::function<void()>(float* data, uint64_t count)> prepare;
};

struct ContestPlan {
  std::vector<uint64_t> bytes;
  int rounds = 15;
  std::chrono::nanoseconds time = std::chrono::milliseconds(50);  // per contender, size and round
};

struct ContestResult {
  std::string name;
  uint64_t bytes = 0;
  std::vector<double> medians_us;  // of each round
  double p99_us = 0;               // over all rounds
};

// Rank 0's times. agree gives rank 0's number to all ranks. Throws where a contender's sum is
// wrong.
std::vector<ContestResult> hold_contest(const std::vector<Contender>& contenders,
                                        const ContestPlan& plan, int rank, int world,
                                        const std::function<int64_t(int64_t)>& agree);

}  // namespace coupler::bench
