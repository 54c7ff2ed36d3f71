#include "common/cores.h"

#include <sched.h>
#include <unistd.h>

namespace db {

bool may_spin(int32_t local_size) {
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  const int mine = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
  // A rank bound to one core has it to itself if the machine has enough cores.
  return mine >= local_size || (mine == 1 && online >= local_size);
}

}  // namespace db
