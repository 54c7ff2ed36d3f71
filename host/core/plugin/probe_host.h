// The db_host that a plugin's probe is given: log lines go to the host's log. Lives as long as the
// process; [any-thread]. Communicators provide their own (comm/host_services.h).
#pragma once

#include <coupler/distributed_backend.h>

namespace coupler {

const db_host& probe_host();

}  // namespace coupler
