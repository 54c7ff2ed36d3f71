// What ranks compare before a model's values move between them. Otherwise the first operation would
// find a difference, without names.
#pragma once

#include "comm/preflight.h"
#include "strategy/model.h"

namespace coupler {

Facts facts_of(const Model& model);

}  // namespace coupler
