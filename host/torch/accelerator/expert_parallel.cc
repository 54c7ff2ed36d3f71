// How the Accelerator divides mixtures of experts (coupler/mixture_of_experts.h).
#include <coupler/error.h>
#include <fmt/format.h>

#include <memory>

#include "accelerator/accelerator.h"
#include "dry_run/dry_run.h"
#include "expert_parallel/divide_experts.h"

namespace coupler {

void Accelerator::Impl::divide_experts(strategy::Model& model,
                                       const expert_parallel::Layers& layers) {
  const int ranks = groups->mesh().size("expert");
  const auto of_layers = std::make_shared<expert_parallel::Ranks>();
  if (mean_comm->size() > 1) of_layers->samples = mean_comm;
  of_layers->made_up = dry_run != nullptr;
  if (ranks > 1) {
    if (layers.empty()) {
      throw Error(
          ErrorCode::kUnsupported,
          fmt::format("parallel.expert is {}, but prepare cannot divide the model '{}', "
                      "which has no coupler::MixtureOfExperts",
                      ranks, model.name),
          {.subject = "parallel.expert", .hint = "set it to 1, or train a model that has one"});
    }
    if (expert_comm == nullptr) {
      expert_comm = groups->make(groups::kExpert, "experts");
      // A dry run averages no gradients: the simulation does, as the job's strategy would.
      if (dry_run == nullptr)
        expert_gradient_comm =
            groups->make(groups::kGradients & ~groups::kExpert, "gradients of experts");
    }
    of_layers->experts = expert_comm;
    expert_parallel::divide(model, layers, expert_comm, expert_gradient_comm);
  }
  for (MixtureOfExpertsImpl* const layer : layers) {
    if (dry_run != nullptr) dry_run->add_experts(layer->options().experts);
    expert_parallel::Ranks::give(*layer, of_layers);
  }
}

}  // namespace coupler
