#include "device/out_of_memory.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <string_view>

namespace coupler {

void throw_out_of_memory(const c10::OutOfMemoryError& cause, const std::string& what,
                         const std::string& largest) {
  // LibTorch's first line contains the requested size, the total and the free memory.
  const std::string_view text = cause.what_without_backtrace();
  throw Error(
      ErrorCode::kOutOfMemory,
      fmt::format("no room for {}{}: {}", what,
                  largest.empty() ? "" : fmt::format(", the largest piece being {}", largest),
                  text.substr(0, text.find('\n'))),
      {.subject = what,
       .hint = "use a smaller batch, training.mixed_precision = \"bf16\", "
               "memory.activation_checkpointing, a backend that divides the model "
               "(backend.use = \"fsdp\"), or one that offloads "
               "(backend.fsdp.offload.device = \"cpu\")"});
}

}  // namespace coupler
