// How many descriptors of this process a crowd of connections may take. Plain function; changes the
// process's soft limit, so call it before threads that care start.
#pragma once

#include <cstddef>

namespace coupler {

// What strangers at the store's door may take together, so that members and the process itself
// keep enough: a quarter of the soft limit of open files at most. Where members may need more than
// half of that limit it is raised, as far as the hard limit allows (ranks inherit it); where that
// is too little a warning says so.
size_t descriptors_for_strangers(size_t members, size_t strangers);

}  // namespace coupler
