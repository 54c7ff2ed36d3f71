#include "comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>

namespace coupler::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Operation = std::function<void()>;

constexpr int64_t kFewest = 3;
constexpr int64_t kMost = 5000;
constexpr int kWarmUp = 2;  // per turn, not measured: the ranks synchronize

using Buffer = std::unique_ptr<float, void (*)(void*)>;

Buffer make_buffer(uint64_t bytes) {
  const uint64_t page = 4096;
  Buffer buffer(static_cast<float*>(std::aligned_alloc(page, (bytes + page - 1) / page * page)),
                std::free);
  if (!buffer) throw std::bad_alloc();
  return buffer;
}

double quantile(std::vector<double>& values, double q) {
  const auto at =
      std::min(values.size() - 1, static_cast<size_t>(q * static_cast<double>(values.size())));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return values[at];
}

void check_sum(const Candidate& candidate, const Operation& operation, float* data, uint64_t count,
               int rank, int world_size) {
  const auto ranks = static_cast<uint64_t>(world_size);
  const uint64_t base = ranks * (ranks - 1) / 2;  // the sum of the ranks
  for (uint64_t i = 0; i < count; ++i) data[i] = static_cast<float>(i % 13 + uint64_t(rank));
  operation();
  for (uint64_t i = 0; i < count; ++i) {
    const auto right = static_cast<float>(ranks * (i % 13) + base);
    if (data[i] != right) {
      throw std::runtime_error(fmt::format("{}: element {} of {} is {} instead of {}",
                                           candidate.name, i, count, data[i], right));
    }
  }
}

double time_one(const Operation& operation) {
  const Clock::time_point start = Clock::now();
  operation();
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// The number of operations that fill the plan's time; the same on every rank.
int64_t choose_count(const Operation& operation, const ComparisonPlan& plan,
                     const std::function<int64_t(int64_t)>& agree) {
  std::vector<double> times(5);
  for (double& time : times) time = time_one(operation);
  const double budget = std::chrono::duration<double, std::micro>(plan.time).count();
  const auto count = static_cast<int64_t>(budget / std::max(0.01, quantile(times, 0.5)));
  return agree(std::clamp(count, kFewest, kMost));
}

}  // namespace

Candidate plain_copy() {
  return {.name = "copy",
          .prepare =
              [](float* data, uint64_t count) {
                const uint64_t bytes = count * sizeof(float);
                return [data, bytes, to = std::shared_ptr<float>(make_buffer(bytes))] {
                  std::memcpy(to.get(), data, bytes);
                };
              },
          .is_sum = false};
}

std::vector<ComparisonResult> run_comparison(const std::vector<Candidate>& candidates,
                                             const ComparisonPlan& plan, int rank, int world_size,
                                             const std::function<int64_t(int64_t)>& agree) {
  std::vector<ComparisonResult> results;
  for (const uint64_t bytes : plan.bytes) {
    const uint64_t count = std::max<uint64_t>(1, bytes / sizeof(float));
    const Buffer shared = make_buffer(count * sizeof(float));
    std::vector<std::shared_ptr<void>> own;  // of candidates that provide theirs
    std::vector<Operation> operations;
    std::vector<int64_t> counts;
    std::vector<std::vector<double>> all(candidates.size());
    const size_t first = results.size();
    for (const Candidate& candidate : candidates) {
      float* data = shared.get();
      if (candidate.memory) {
        own.push_back(candidate.memory(count * sizeof(float)));
        data = static_cast<float*>(own.back().get());
      }
      operations.push_back(candidate.prepare(data, count));
      if (candidate.is_sum) {
        check_sum(candidate, operations.back(), data, count, rank, world_size);
      }
      // Sums of zeros stay zero: no infinities and no denormals, however many operations follow.
      std::fill_n(data, count, 0.0F);
      counts.push_back(choose_count(operations.back(), plan, agree));
      results.push_back({.name = candidate.name, .bytes = bytes, .medians_us = {}});
    }
    for (int round = 0; round < plan.rounds; ++round) {
      for (size_t turn = 0; turn < candidates.size(); ++turn) {
        const size_t who = (turn + static_cast<size_t>(round)) % candidates.size();
        for (int i = 0; i < kWarmUp; ++i) operations[who]();
        std::vector<double> times(static_cast<size_t>(counts[who]));
        for (double& time : times) time = time_one(operations[who]);
        all[who].insert(all[who].end(), times.begin(), times.end());
        results[first + who].medians_us.push_back(quantile(times, 0.5));
      }
    }
    for (size_t who = 0; who < candidates.size(); ++who) {
      results[first + who].p99_us = quantile(all[who], 0.99);
    }
  }
  return results;
}

}  // namespace coupler::bench
