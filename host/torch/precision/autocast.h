// The calling thread's autocast settings, to be applied again elsewhere.
#pragma once

#include <coupler/autocast.h>

namespace coupler {

// The cast cache is off: a copy cast without a graph must not be reused while one is recorded.
AutocastSettings autocast_now();

}  // namespace coupler
