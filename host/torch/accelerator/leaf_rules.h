// What a collective requires of each leaf of a nested structure. Pure functions. A violation is
// returned, not thrown, since the other ranks must learn of it first (accelerator/agreement.h).
#pragma once

#include <coupler/error.h>
#include <coupler/nested.h>

#include <functional>
#include <optional>
#include <string>

namespace coupler {

// The problem of the first leaf that cannot be sent or for which `check` throws an Error. The
// message names operation and leaf. Undefined leaves are not sent, so they are not checked.
std::optional<Error> problem_of(const std::string& operation, const detail::NestedView& value,
                                const std::function<void(const at::Tensor&)>& check = {});

}  // namespace coupler
