// cross_entropy: LibTorch's cross_entropy_loss of 16-bit logits, computed in fp32 without an fp32
// copy of them. [any-thread]
//
// Autocast uses it on CUDA devices. On CPUs LibTorch converts the logits; on CUDA devices it asks
// log_softmax for the logits' own type, so that a loss of 10 would be a multiple of 0.06. A
// converted copy, its log_softmax and their gradients take 12 bytes per logit, often more than the
// rest of a language model's activations; this takes the same time and 0.5 GiB at most.
//
// Forward converts a few rows at a time. Backward needs one kernel over all logits: their softmax
// is computed in fp32 and rounded once, except the target's, which comes from the row's loss,
// because its distance from 1 matters.
#pragma once

#include <ATen/core/TensorBody.h>
#include <c10/core/SymInt.h>

#include <cstdint>
#include <optional>

namespace coupler::precision {

// Of converted rows at a time. A tenth of this would stay in a GPU's cache, but a training step
// then waits for the host, which starts some kernels for every part.
constexpr int64_t kConvertedBytes = int64_t{256} << 20;

// Arguments and result as of at::cross_entropy_loss; the result is fp32. Weights, label smoothing,
// class probabilities and more than two dimensions take the way over a copy.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target,
                         const std::optional<at::Tensor>& weight, int64_t reduction,
                         c10::SymInt ignore_index, double label_smoothing,
                         int64_t converted_bytes = kConvertedBytes);

}  // namespace coupler::precision
