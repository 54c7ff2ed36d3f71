// How many file descriptors unauthenticated connections may use. Plain function; may raise the
// process's soft limit, so call it before threads that depend on that limit start.
#pragma once

#include <cstddef>

namespace coupler {

// How many descriptors strangers (connections that have not authenticated) may use together: at
// most a quarter of the soft limit of open files, so that members and the process itself keep the
// rest. If members may need more than half of the soft limit, raises it as far as the hard limit
// allows (ranks inherit it), and logs a warning if that is not enough.
size_t descriptors_for_strangers(size_t members, size_t strangers);

}  // namespace coupler
