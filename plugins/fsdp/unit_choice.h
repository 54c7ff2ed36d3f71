// Which parameters of a model form a unit under the user's policy, and which are in no unit.
// Pure functions; [any-thread].
#pragma once

#include <vector>

#include "common/model.h"
#include "common/units.h"
#include "fsdp/settings.h"

namespace db::fsdp {

// Every unit has at least one parameter, all of one type. A type, name or pattern that matches
// nothing is DB_ERR_INVALID_ARGUMENT with some valid names; so are two patterns for one module.
Failure choose_units(const Settings& settings, const Model& model, std::vector<UnitDraft>* units);

}  // namespace db::fsdp
