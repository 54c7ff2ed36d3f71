// Which network interface NCCL's own sockets use.
#pragma once

#include <coupler/distributed_backend.h>

namespace db::nccl {

// NCCL reads NCCL_SOCKET_IFNAME once, before its first communicator; if it is unset, NCCL listens
// on whatever interface it finds. So it is set here, unless the user did: to the interface that the
// host names, or to the loopback within one machine. Called while a communicator is created; later
// calls have no effect.
void choose_interface(const db_communicator_params& params);

}  // namespace db::nccl
