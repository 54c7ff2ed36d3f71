// Collectives from several threads at once: each with its own communicator, in no agreed order;
// and several threads that share one, with identical operations in any order.
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <thread>

#include "rank.h"
#include "simple_ops.h"

namespace coupler::matrix {
namespace {

void sum_ones(comm::Communicator& communicator, size_t size, bool blocking) {
  Values<float> values(size, 1.0f);
  if (blocking) {
    communicator.run(all_reduce(values));
  } else {
    communicator.submit(all_reduce(values)).wait();
  }
  const auto world_size = static_cast<float>(communicator.size());
  check(std::all_of(values.begin(), values.end(), [&](float v) { return v == world_size; }),
        fmt::format("a sum of ones over {} ranks is wrong", communicator.size()));
}

void on_threads(size_t count, const std::function<void(size_t)>& function) {
  std::vector<std::exception_ptr> errors(count);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      try {
        function(i);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace

int threads(Rank& rank) {
  constexpr size_t kThreads = 4;
  const auto world = rank.connect();
  std::vector<std::shared_ptr<comm::Communicator>> own;
  for (size_t i = 0; i < kThreads; ++i) {
    own.push_back(world->split(0, rank.rank(), fmt::format("thread-{}", i)));
  }
  on_threads(kThreads, [&](size_t i) {
    for (size_t step = 0; step < 100; ++step) sum_ones(*own[i], 1 + i * 31 + step, step % 2 == 0);
  });
  on_threads(kThreads, [&](size_t i) {
    for (size_t step = 0; step < 100; ++step) sum_ones(*world, 333, (i + step) % 2 == 0);
  });
  return 0;
}

}  // namespace coupler::matrix
