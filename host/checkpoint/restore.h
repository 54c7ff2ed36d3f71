// Bringing the objects of a job into the state that a checkpoint holds, whatever number of ranks
// and whatever backend wrote it. Used by the thread that trains; every rank does it, each for its
// own parts.
#pragma once

#include <string>

#include "checkpoint/training_state.h"

namespace coupler::checkpoint {

// Throws Error(kInvalidArgument) naming everything in which the checkpoint is of another program:
// models, tensors that are missing, unexpected or of another shape, optimizers, schedulers,
// loaders, objects. Changes nothing.
void check_fits(const TrainingState& job, const Manifest& manifest, const std::string& folder);

// After check_fits. Throws Error(kIo) naming a file that is damaged: the state is neither the old
// one nor the checkpoint's then. Collective only where parameters are gathered (parameters_changed,
// which the caller calls for each model).
void restore(const TrainingState& job, const Manifest& manifest, const std::string& folder);

}  // namespace coupler::checkpoint
