// The communicator of cpp_self.
#pragma once

#include <coupler/distributed_backend.h>

#include <cstdint>

namespace plugin {

struct Settings {
  int64_t timeout_ns = 0;
  bool always_request = true;
};

db_communicator *make_communicator(
    const Settings &settings);  // throws std::bad_alloc

}  // namespace plugin
