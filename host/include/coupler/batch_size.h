// find_executable_batch_size: finds the largest batch size that fits into memory by trial, keeping
// the number of samples per step constant. Used by the training thread.
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

// One search. All ranks agree on the outcome of each attempt.
class BatchSizeSearch {
 public:
  BatchSizeSearch(Accelerator& accelerator, int64_t starting_batch_size);

  int64_t batch_size() const { return batch_size_; }

  // True for std::bad_alloc, errors of LibTorch's allocators, and Error(kOutOfMemory).
  static bool is_out_of_memory(const std::exception_ptr& error);
  // Called after an attempt. True: it succeeded on every rank. False: retry with the new
  // batch_size(). Throws Error(kUsage) if not even a batch of 1 fits. Collective.
  bool succeeded(bool here);

 private:
  Accelerator& accelerator_;
  const int64_t starting_batch_size_, starting_steps_;
  int64_t batch_size_;
};

}  // namespace detail

// Calls run(batch_size), first with starting_batch_size. While any rank runs out of memory, all
// ranks retry with the next smaller divisor of starting_batch_size, and gradient_accumulation_steps
// grows in proportion. Calls Accelerator::free_memory between attempts. Returns the result of run;
// other exceptions pass through. Throws Error(kInvalidArgument) if starting_batch_size is below 1,
// and Error(kUsage) if no batch fits.
//
// Collective. run should use the same amount of memory on all ranks: if a single rank fails in the
// middle of a collective, the others wait until the backend's timeout, which ends the job.
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
