#include <ATen/ops/stack.h>
#include <coupler/detail/collate.h>
#include <coupler/error.h>
#include <fmt/format.h>

namespace coupler::detail {

at::Tensor stack(const std::vector<at::Tensor>& samples) {
  for (size_t i = 0; i < samples.size(); ++i) {
    if (!samples[i].defined())
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("sample {} of a batch of {} is an undefined tensor", i, samples.size()),
          {.subject = "batch", .hint = "return a tensor from the dataset's get()"});
    if (samples[i].sizes() != samples[0].sizes())
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("the samples of a batch differ in shape: sample 0 has [{}], sample {} "
                      "has [{}]",
                      fmt::join(samples[0].sizes(), ", "), i, fmt::join(samples[i].sizes(), ", ")),
          {.subject = "batch",
           .hint = "pad them, or let the dataset's get_batch return the batch itself"});
  }
  return at::stack(samples);
}

}  // namespace coupler::detail
