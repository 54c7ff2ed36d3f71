// Code that the data loader tests share: datasets of numbers, error messages, and ranks that are
// threads of the test.
#pragma once

#include <ATen/core/Tensor.h>
#include <coupler/data_loader.h>
#include <coupler/error.h>
#include <gtest/gtest.h>
#include <torch/data/datasets/base.h>
#include <torch/data/datasets/stateful.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace coupler::testing {

using Numbers = std::vector<int64_t>;

// 0, 1, …, count - 1, map-style and as a stream; batches are std::vector<int64_t>.
struct NumberMap : torch::data::datasets::Dataset<NumberMap, int64_t> {
  explicit NumberMap(size_t samples) : count(samples) {}
  int64_t get(size_t index) override { return static_cast<int64_t>(index); }
  std::optional<size_t> size() const override { return count; }
  size_t count;
};

struct NumberStream {
  explicit NumberStream(int64_t samples) : count(samples) {}
  std::optional<int64_t> next() {
    return place < count ? std::optional<int64_t>(place++) : std::nullopt;
  }
  void reset() { place = 0; }
  int64_t count;
  int64_t place = 0;
};

template <class Function>
std::string refusal(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

inline void expect_says(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << "'" << message << "' lacks '" << part << "'";
}

// The batches of one loop.
template <class Loader>
std::vector<Numbers> batches_of(Loader& loader) {
  std::vector<Numbers> all;
  for (const Numbers& batch : loader) all.push_back(batch);
  return all;
}

// What all ranks' loops yield, and which samples count, step by step in rank order, for up to
// `steps` steps; and the cursor after them.
struct Yielded {
  Numbers own;
  std::vector<Numbers> steps;
  LoaderCursor cursor;
};

constexpr size_t kAll = ~size_t{0};

// Of the loaders that make() makes, one for each rank, whose batches are Numbers.
template <class Make>
Yielded yielded_by(const Make& make, int world_size, size_t steps = kAll,
                   const LoaderCursor* from = nullptr) {
  Yielded result;
  if (from != nullptr) ::testing::internal::CaptureStderr();  // streams are read again
  for (int rank = 0; rank < world_size; ++rank) {
    auto loader = make();
    loader.bind(rank, world_size, at::kCPU);
    if (from != nullptr) loader.load_state(*from);
    size_t step = 0;
    for (const Numbers& batch : loader) {
      const auto own = batch.begin() + loader.core()->own_samples();
      result.own.insert(result.own.end(), batch.begin(), own);
      result.steps.resize(std::max(result.steps.size(), step + 1));
      result.steps[step].insert(result.steps[step].end(), batch.begin(), batch.end());
      result.cursor = loader.state();
      if (++step == steps) break;
    }
  }
  if (from != nullptr) ::testing::internal::GetCapturedStderr();
  return result;
}

// Ranks that are threads: each puts a value on a table, which all read between two barriers. If a
// rank never arrives, the others' wait ends with an exception.
class Table {
 public:
  explicit Table(int world_size) : values_(static_cast<size_t>(world_size)) {}

  std::vector<int64_t> exchange(int rank, int64_t value) {
    values_[static_cast<size_t>(rank)] = value;
    barrier();
    std::vector<int64_t> all = values_;
    barrier();
    return all;
  }

 private:
  void barrier() {
    std::unique_lock lock(mutex_);
    const uint64_t round = round_;
    if (++waiting_ == values_.size()) {
      waiting_ = 0;
      ++round_;
      all_here_.notify_all();
    } else if (!all_here_.wait_for(lock, std::chrono::seconds(20), [&] { return round_ != round; }))
      throw std::runtime_error("a rank is out of step with the others");
  }

  std::mutex mutex_;
  std::condition_variable all_here_;
  std::vector<int64_t> values_;
  size_t waiting_ = 0;
  uint64_t round_ = 0;
};

class ThreadPeers : public detail::LoaderPeers {
 public:
  ThreadPeers(std::shared_ptr<Table> table, int rank) : table_(std::move(table)), rank_(rank) {}
  std::vector<int64_t> all(int64_t mine) override { return table_->exchange(rank_, mine); }
  bool any(bool mine) override {
    bool result = false;
    for (const int64_t value : all(mine ? 1 : 0)) result = result || value != 0;
    return result;
  }
  void broadcast(void* data, size_t size) override {
    const auto addresses = all(reinterpret_cast<int64_t>(data));
    const auto sizes = all(static_cast<int64_t>(size));
    if (sizes[0] != sizes[static_cast<size_t>(rank_)])
      throw std::runtime_error("the ranks broadcast different sizes");
    if (rank_ != 0) std::memcpy(data, reinterpret_cast<const void*>(addresses[0]), size);
    all(0);  // rank 0's memory stays until all ranks have read it
  }

 private:
  std::shared_ptr<Table> table_;
  int rank_;
};

// Runs rank(r, peers) for every rank on its own thread; rethrows the first exception.
template <class Rank>
void run_loaders(int world_size, const Rank& rank) {
  const auto table = std::make_shared<Table>(world_size);
  std::vector<std::exception_ptr> errors(static_cast<size_t>(world_size));
  std::vector<std::thread> threads;
  for (int r = 0; r < world_size; ++r)
    threads.emplace_back([&, r] {
      try {
        rank(r, std::make_shared<ThreadPeers>(table, r));
      } catch (...) {
        errors[static_cast<size_t>(r)] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace coupler::testing
