// Describes a model for estimates. Pure function.
#pragma once

#include "estimate/step_log.h"
#include "strategy/model.h"

namespace coupler {

LoggedModel describe_for_estimate(const Model& model);

}  // namespace coupler
