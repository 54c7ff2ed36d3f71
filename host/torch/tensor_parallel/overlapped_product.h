// The product of a divided layer as one node of autograd, which exchanges while it computes:
// forward in chunks of tokens, of which one is summed over the group, or arrives from it, while
// another is computed; backward gives the input's gradient away to be summed and computes the
// weight's meanwhile.
//
// Collective over the group; any thread, all ranks in the same order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "residency/product.h"
#include "tensor_parallel/arriving_tokens.h"
#include "tensor_parallel/input_gradient.h"

namespace coupler::tensor_parallel {

// What ranks exchange about a product's result.
enum class ResultExchange : int64_t {
  kNone,
  kSum,        // over the ranks
  kOwnTokens,  // of the sum; backward gathers the gradients of all
};

struct Overlap {
  Group group;
  ResultExchange result = ResultExchange::kNone;
  int64_t dim = 0;                   // of the tokens, for kOwnTokens
  int64_t chunks = 1;                // of the result's exchange; at most one a token
  InputGradientPtr input = nullptr;  // takes the input's gradient; null: it is complete as it is
  // The tokens of the input that are on their way, which the product takes; null: all are there.
  std::shared_ptr<ArrivingTokens> arriving = nullptr;
};

// Whether overlapped_product computes what LibTorch would. Not if operands have types that the
// program or a backend that shards converts, if results are converted, or the weight is packed.
bool can_overlap(const residency::Product& product);

// product.x [..., in] of the type to compute in. Returns [..., out] of that type, after the
// exchange; the bias, if it is defined, is added to this rank's product, so give none with a sum.
at::Tensor overlapped_product(const residency::Product& product, const Overlap& overlap);

}  // namespace coupler::tensor_parallel
