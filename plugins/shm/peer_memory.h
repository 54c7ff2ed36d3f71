// The extension coupler.memory/1 of this backend's communicators: memory in the rank's arena.
// Thread rule: as tagged in coupler/memory.h.
#pragma once

#include <coupler/memory.h>

namespace db::shm {

// Null if the communicator has no arenas: it has one rank, or peer_memory is off.
const db_peer_memory* memory_extension(const db_communicator* communicator);

}  // namespace db::shm
