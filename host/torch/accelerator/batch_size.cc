#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <coupler/batch_size.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <new>
#include <string_view>

#include "base/log.h"

namespace coupler::detail {
namespace {

int64_t checked(int64_t batch_size) {
  if (batch_size >= 1) return batch_size;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("find_executable_batch_size: the starting batch size is {}, but must "
                          "be at least 1",
                          batch_size),
              {.subject = "starting_batch_size"});
}

}  // namespace

BatchSizeSearch::BatchSizeSearch(Accelerator& accelerator, int64_t starting_batch_size)
    : accelerator_(accelerator),
      starting_batch_size_(checked(starting_batch_size)),
      starting_steps_(accelerator.gradient_accumulation_steps()),
      batch_size_(starting_batch_size) {}

bool BatchSizeSearch::is_out_of_memory(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    return true;
  } catch (const c10::OutOfMemoryError&) {
    return true;
  } catch (const Error& own) {
    return own.code() == ErrorCode::kOutOfMemory;
  } catch (const c10::Error& other) {
    // LibTorch's host allocator has no error type of its own.
    return std::string_view(other.what()).find("DefaultCPUAllocator: ") != std::string_view::npos;
  } catch (...) {
    return false;
  }
}

bool BatchSizeSearch::succeeded(bool here) {
  const at::Tensor flag = at::scalar_tensor(here ? 1 : 0, at::kInt);
  if (accelerator_.reduce(flag, Reduction::kMin).item<int>() == 1) return true;
  accelerator_.free_memory();
  const int64_t failed = batch_size_;
  do {
    --batch_size_;
  } while (batch_size_ > 0 && starting_batch_size_ % batch_size_ != 0);
  if (batch_size_ == 0) {
    accelerator_.set_gradient_accumulation_steps(starting_steps_);
    throw Error(ErrorCode::kUsage,
                "find_executable_batch_size: memory runs out even with a batch size of 1",
                {.subject = "batch_size",
                 .hint = "use a smaller model, a backend that shards it, or a lower precision"});
  }
  const int64_t steps = starting_steps_ * (starting_batch_size_ / batch_size_);
  accelerator_.set_gradient_accumulation_steps(steps);
  if (accelerator_.is_main_process()) {
    log(LogLevel::kWarning, "train",
        fmt::format("memory ran out with a batch size of {}: trying {} with {} accumulation steps",
                    failed, batch_size_, steps));
  }
  return false;
}

}  // namespace coupler::detail
