// What ranks compare before values of a model move between them: else a difference would be found
// by the first operation, which knows no names.
#pragma once

#include "comm/preflight.h"
#include "strategy/model.h"

namespace coupler {

Facts facts_of(const Model& model);

}  // namespace coupler
