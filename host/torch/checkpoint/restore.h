// Restores the objects of a job from a checkpoint, whatever number of ranks and whatever backend
// wrote it. Called by the training thread of every rank, each for its own parts.
#pragma once

#include <string>

#include "checkpoint/training_state.h"

namespace coupler::checkpoint {

// Throws Error(kInvalidArgument) listing everything in which the checkpoint does not match the
// program: models, tensors that are missing, unexpected or of another shape, optimizers,
// schedulers, loaders, objects. Changes nothing.
void check_fits(const TrainingState& job, const Manifest& manifest, const std::string& folder);

// Call after check_fits. Throws Error(kIo) naming a damaged file; the state is then neither the old
// one nor the checkpoint's. Collective only if parameters are gathered (parameters_changed, which
// the caller calls for each model).
void restore(const TrainingState& job, const Manifest& manifest, const std::string& folder);

}  // namespace coupler::checkpoint
