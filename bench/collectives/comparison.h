// Contest: measures several implementations of an in-place all_reduce (sum of floats) in turns in
// the same processes. In each round, each of them runs a number of operations on its buffer; each
// round starts with a different one. Collective; used by one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace coupler::bench {

// Makes the operation for one buffer. Every contender prepares ahead whatever it can.
struct Candidate {
  std::string name;
  std::function<std::function<void()>(float* data, uint64_t count)> prepare;
  // Provides its buffer. Null: it works on the one that all such candidates share.
  std::function<std::shared_ptr<void>(uint64_t bytes)> memory = nullptr;
  bool is_sum = true;  // false: something else to compare with, whose result is not checked
};

// Each process copies as many bytes as it has to read and write in an all_reduce in place: the rate
// at which the ranks together can move memory.
Candidate plain_copy();

struct ComparisonPlan {
  std::vector<uint64_t> bytes;
  int rounds = 15;
  std::chrono::nanoseconds time = std::chrono::milliseconds(50);  // per contender, size and round
};

struct ComparisonResult {
  std::string name;
  uint64_t bytes = 0;
  std::vector<double> medians_us;  // of each round
  double p99_us = 0;               // over all rounds
};

// Returns rank 0's times. agree: broadcasts rank 0's number. Throws if a contender's sum is wrong.
std::vector<ComparisonResult> run_comparison(const std::vector<Candidate>& candidates,
                                             const ComparisonPlan& plan, int rank, int world_size,
                                             const std::function<int64_t(int64_t)>& agree);

}  // namespace coupler::bench
