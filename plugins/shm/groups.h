// Groups: communicators that are made from another one, split and shrink. Their ranks need no
// store: they meet over the communicator itself, or, if some of its ranks are lost, in its segment.
// Thread rule: as tagged in distributed_backend.h and shrink.h.
#pragma once

#include <coupler/shrink.h>

#include <cstdint>

namespace db::shm {

db_status split(db_communicator* communicator, int32_t color, int32_t key, db_communicator** result,
                db_error* error);

// "coupler.shrink/1"; null for one rank. shrink also continues after a failure of the communicator,
// since a lost rank is one.
const db_shrink* shrink_extension(const db_communicator* communicator);

}  // namespace db::shm
