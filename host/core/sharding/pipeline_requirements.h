// What a pipeline requires of the backend and of where the optimizer's state is: the same for
// training and for estimates. Pure functions; [any-thread].
#pragma once

#include <string>

#include "config/config.h"

namespace coupler::sharding {

// Throws Error(kUnsupported) if the backend of this name shards models itself.
void require_pipeline_transport(const std::string& backend, bool shards);

// Throws Error(kUnsupported) if memory.offload_optimizer_device is set.
void require_pipeline_optimizer(const config::MemoryConfig& memory);

}  // namespace coupler::sharding
