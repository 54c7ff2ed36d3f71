// What prepare does with a model's mixtures of experts (coupler/mixture_of_experts.h): gives each
// rank of an expert group its experts. One thread; collective over the group.
#pragma once

#include <coupler/mixture_of_experts.h>

#include <memory>
#include <utility>
#include <vector>

#include "expert_parallel/routing.h"
#include "strategy/model.h"

namespace coupler::expert_parallel {

// The ranks that a mixture of experts works with.
struct Ranks {
  Group experts;         // that have its experts; null: this one has all
  Group samples;         // that have other tokens; null: none
  bool made_up = false;  // the others, in a dry run: what they choose is assumed
  static void give(MixtureOfExpertsImpl& layer, std::shared_ptr<const Ranks> ranks) {
    layer.ranks_ = std::move(ranks);
  }
};

using Layers = std::vector<MixtureOfExpertsImpl*>;

// The mixtures of experts of a model, in order of registration.
Layers layers_of(torch::nn::Module& model);

// Each rank of the group keeps its part of the experts, with the values of the group's rank 0. The
// gradients of the parts are averaged over `averaging`: the ranks that average gradients, but only
// those with the same experts. Throws Error(kConfig) naming the parameter if the experts do not
// divide; the model is then unchanged.
void divide(strategy::Model& model, const Layers& layers, const Group& group,
            const Group& averaging);

}  // namespace coupler::expert_parallel
