// What the configuration says about a wrapper backend's base, the transport that moves its bytes:
// the option `base` of [backend.NAME]. Pure functions.
#pragma once

#include <string>

#include "config/config.h"

namespace coupler {

// Null where it is not set.
const PluginOption* find_base(const BackendConfig& backend, const std::string& wrapper);

// "auto" where it is not set, or empty. A base of another type is left to the check of all options
// when the communicator is made.
std::string wrapper_base(const BackendConfig& backend, const std::string& wrapper);

}  // namespace coupler
