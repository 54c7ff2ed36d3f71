// The db_host that plugins are given: log lines go to the host's log. Lives as long as the process;
// [any-thread].
#pragma once

#include <coupler/distributed_backend.h>

namespace coupler {

const db_host& host_services();

}  // namespace coupler
