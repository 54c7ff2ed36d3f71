// The configured base of a wrapper backend, the transport that moves its bytes: the option `base`
// of [backend.NAME]. Pure functions.
#pragma once

#include <string>

#include "config/config.h"

namespace coupler {

// Null if it is not set.
const PluginOption* find_base(const BackendConfig& backend, const std::string& wrapper);

// "auto" if it is not set or empty, or not a string: the check of all options when the communicator
// is created reports the wrong type.
std::string wrapper_base(const BackendConfig& backend, const std::string& wrapper);

}  // namespace coupler
