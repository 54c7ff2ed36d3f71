// The calling thread's autocast, as settings that can be set again elsewhere.
#pragma once

#include <coupler/autocast.h>

namespace coupler {

// Without the cache of casts: a copy cast while no graph is recorded must not serve where one is.
AutocastSettings autocast_now();

}  // namespace coupler
