// Keys that are valid alone but not together, whatever the model. Checked when a training program
// starts and by `coupler config check`. Pure functions.
#pragma once

#include <coupler/error.h>

#include <string>
#include <vector>

#include "config/config.h"

namespace coupler::config {

// One Error(kConfig) for each, whose subject is the key to look at first.
std::vector<Error> conflicts_in(const Config& config);

// The same for a backend (its name) that shards the model, which is known once it has planned.
std::vector<Error> sharding_conflicts(const std::string& backend, const MemoryConfig& memory,
                                      const CommunicationConfig& communication);

// Throws the first, if there is one.
void throw_first(const std::vector<Error>& contradictions);

// The configured base of a wrapper backend, the transport that moves its bytes: an option of
// [backend.NAME], `base` unless the backend has several. Pure functions.

// Null if it is not set.
const PluginOption* find_base(const BackendConfig& backend, const std::string& wrapper,
                              const std::string& option = "base");

// `otherwise` if it is not set or empty, or not a string: the check of all options when the
// communicator is created reports the wrong type.
std::string wrapper_base(const BackendConfig& backend, const std::string& wrapper,
                         const std::string& option = "base", const std::string& otherwise = "auto");

}  // namespace coupler::config
