// Divides the layers of a model over a tensor group, as a plan says. The modules stay as they are:
// their parameters become this rank's parts, and hooks on these (divided_layer.h) run the layers.
// One thread; collective over the group.
#pragma once

#include <cstdint>
#include <optional>

#include "sharding/model_division.h"
#include "strategy/model.h"
#include "tensor_parallel/exchange.h"

namespace coupler::tensor_parallel {

using Plans = sharding::TensorPlans;

struct DivideOptions {
  // The dimension of [batch, tokens, features] along which the group also divides what is between
  // the layers; empty: none.
  std::optional<int64_t> sequence;
  int64_t overlap_chunks = 1;  // as DividedWeight's
};

// plans: the first that names a module counts. Every rank gets the values of the group's rank 0.
// What is on meta must be so on all ranks; rank 0 materializes it, one parameter at a time, and
// what is divided a chunk at a time. Throws Error(kConfig) naming module and line if the plan does
// not fit the model, Error(kMismatch) if the ranks' models or plans differ; the model is then
// unchanged.
void divide(strategy::Model& model, const Plans& plans, const Group& group,
            const DivideOptions& options);

// From now on, TorchScript runs functions as they are written. Its optimizing executor would
// compute the gradients of several operations at once, without the exchange between them. For
// functions that have not run yet.
void run_scripts_as_written();

}  // namespace coupler::tensor_parallel
