// find_executable_batch_size: the largest batch that fits into memory, found by trying, with the
// number of samples in a step held constant. Used by the thread that trains.
//
//   coupler::find_executable_batch_size(accelerator, 128, [&](int64_t batch_size) {
//     Net model; …                        // make, prepare and train everything in here
//   });
#pragma once

#include <coupler/accelerator.h>

#include <cstdint>
#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

namespace coupler {

namespace detail {

// One search. All processes agree after each attempt.
class BatchSizeSearch {
 public:
  BatchSizeSearch(Accelerator& accelerator, int64_t starting_batch_size);

  int64_t batch_size() const { return batch_size_; }

  // Whether memory ran out: true for std::bad_alloc and LibTorch's errors of its allocators.
  static bool is_out_of_memory(const std::exception_ptr& error);
  // After an attempt. True: it succeeded everywhere. False: try again with the new batch_size().
  // Throws Error(kUsage) where not even a batch of 1 fits. Collective.
  bool succeeded(bool here);

 private:
  Accelerator& accelerator_;
  const int64_t starting_batch_size_, starting_steps_;
  int64_t batch_size_;
};

}  // namespace detail

// Calls run(batch_size), first with starting_batch_size, and as long as memory runs out on any
// process with its next smaller divisor on all of them; gradient_accumulation_steps grows by as
// much as the batch shrinks. Between attempts the Accelerator forgets what was prepared
// (free_memory). Returns what run returned. Other exceptions pass through. Throws
// Error(kInvalidArgument) for a start below 1 and Error(kUsage) where no batch fits.
//
// Collective. run takes its memory alike on all processes: where one alone fails in the middle of a
// collective, the others wait for it until the backend's timeout, which ends the job.
template <class Run>
auto find_executable_batch_size(Accelerator& accelerator, int64_t starting_batch_size, Run&& run) {
  using Result = decltype(run(starting_batch_size));
  detail::BatchSizeSearch search(accelerator, starting_batch_size);
  for (;;) {
    std::optional<std::conditional_t<std::is_void_v<Result>, bool, Result>> result;
    try {
      if constexpr (std::is_void_v<Result>) {
        run(search.batch_size());
        result = true;
      } else {
        result.emplace(run(search.batch_size()));
      }
    } catch (...) {
      if (!detail::BatchSizeSearch::is_out_of_memory(std::current_exception())) throw;
    }
    if (!search.succeeded(result.has_value())) continue;
    if constexpr (std::is_void_v<Result>) {
      return;
    } else {
      return std::move(*result);
    }
  }
}

}  // namespace coupler
