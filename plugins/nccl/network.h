// Which network interface NCCL's own sockets use.
#pragma once

#include <coupler/distributed_backend.h>

namespace db::nccl {

// NCCL reads NCCL_SOCKET_IFNAME once, before its first communicator, and listens on whatever it
// finds where that is not set. So it is set here, unless the user did: to the interface that the
// host names, or, within one machine, to the loopback. Called while a communicator is created;
// later calls change nothing.
void choose_interface(const db_communicator_params& params);

}  // namespace db::nccl
