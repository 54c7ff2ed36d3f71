// Divides the layers of a logged model, of which only the sizes are known, as prepare divides those
// of a program's. Pure function.
#pragma once

#include "estimate/step_log.h"
#include "sharding/model_division.h"

namespace coupler::estimate {

// The model becomes that of rank 0 of a tensor group of `ranks`; the other ranks' have the same
// sizes. plans, errors: those of sharding::divide_model.
void divide_layers(LoggedModel& model, const sharding::TensorPlans& plans, int ranks);

}  // namespace coupler::estimate
