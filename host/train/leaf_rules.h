// What a collective asks of each leaf of a nested structure. Pure functions; a rule that is broken
// is returned, not thrown, for the other ranks have to hear of it first (train/agreement.h).
#pragma once

#include <coupler/error.h>
#include <coupler/nested.h>

#include <functional>
#include <optional>
#include <string>

namespace coupler {

// What is wrong with the first leaf for which `check` throws an Error or LibTorch's, or that cannot
// travel at all (undefined ones do not); the message names operation and leaf.
std::optional<Error> problem_of(const std::string& operation, const detail::NestedView& value,
                                const std::function<void(const at::Tensor&)>& check = {});

}  // namespace coupler
