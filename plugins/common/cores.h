// The cores that the ranks of a machine share. [any-thread]
#pragma once

#include <cstdint>

namespace db {

// Whether a waiting rank may spin for a while without taking a core from another one of the
// local_size ranks of this machine.
bool may_spin(int32_t local_size);

}  // namespace db
