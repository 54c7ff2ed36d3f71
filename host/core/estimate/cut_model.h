// Cuts a logged model, of which only the sizes are known, into the stages of a pipeline, as
// prepare_pipeline cuts a program's. Pure functions.
#pragma once

#include <cstddef>
#include <vector>

#include "estimate/step_log.h"

namespace coupler::estimate {

// The parameters of LoggedModel::parameters that each layer of a chain uses. A tied one is in
// several layers.
using LayerChain = std::vector<std::vector<size_t>>;

// The model as each stage keeps it, in order: the cut is the one that split_points "auto" makes by
// the bytes of the parameters. Throws Error(kInvalidArgument) if there are fewer layers than
// stages.
std::vector<LoggedModel> cut_model(const LoggedModel& model, const LayerChain& chain, int stages);

}  // namespace coupler::estimate
