// What a collective asks of each leaf of a nested structure. Pure functions; a rule that is broken
// is returned, not thrown, for the other ranks have to hear of it first (train/agreement.h).
#pragma once

#include <coupler/error.h>
#include <coupler/nested.h>

#include <functional>
#include <optional>
#include <string>

namespace coupler {

// What is wrong with the first leaf that cannot travel, or for which `check` throws an Error; the
// message names operation and leaf. Undefined leaves, which do not travel, are not looked at.
std::optional<Error> problem_of(const std::string& operation, const detail::NestedView& value,
                                const std::function<void(const at::Tensor&)>& check = {});

}  // namespace coupler
