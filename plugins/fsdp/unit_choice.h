// Which parameters of a model form a unit, by the policy that the user chose, and which are left
// out of all. Pure functions; [any-thread].
#pragma once

#include <vector>

#include "common/model.h"
#include "common/units.h"
#include "fsdp/settings.h"

namespace db::fsdp {

// Every unit has parameters, all of one type. A type, a name or a pattern that matches nothing is
// DB_ERR_INVALID_ARGUMENT with some that would, and so are two patterns for one module.
Failure choose_units(const Settings& settings, const Model& model, std::vector<UnitDraft>* units);

}  // namespace db::fsdp
