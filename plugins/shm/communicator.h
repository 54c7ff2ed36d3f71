// The communicators of this backend. Thread rule: as tagged in distributed_backend.h.
#pragma once

#include <coupler/distributed_backend.h>

#include <cstdint>

#include "common/error.h"

namespace db::shm {

// The options of create.
struct Settings {
  int64_t busy_poll_us = 0;
  uint64_t chunk_bytes = 0;  // 0: by the number of ranks
};

Failure create_communicator(const db_communicator_params& params, const Settings& settings,
                            db_communicator** result);

}  // namespace db::shm
