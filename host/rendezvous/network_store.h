// A store hosted by rank 0 for ranks on several machines that no launcher of ours, or torchrun's
// agent, started together (`coupler launch` on each machine, mpirun, srun, deepspeed, pods). The
// result is [any-thread].
//
// The ranks meet at MASTER_ADDR:MASTER_PORT, where rank 0 listens: at the address of
// backend.interface, else at MASTER_ADDR itself, which then is one of its machine. What opens the
// store is launch.secret_file, which all machines have.
#pragma once

#include <memory>

#include "config/config.h"
#include "rendezvous/process_info.h"
#include "rendezvous/secret.h"
#include "rendezvous/store.h"

namespace coupler {

// Throws Error(kConfig) naming what is missing (a place to meet, the secret file, an interface),
// and what StoreServer and StoreClient throw. The others wait for rank 0 until backend.timeout.
std::shared_ptr<Store> host_or_join_network_store(const ProcessInfo& process, const Config& config);

// The same where the ranks have another store already, that of torchrun's agent: there they learn
// where rank 0 serves, at a port of its own. Without launch.secret_file the secret lies there too,
// for whoever reaches that store.
std::shared_ptr<Store> host_or_join_through(Store& agent, const ProcessInfo& process,
                                            const Config& config);

// The secret of all processes that have this file, of 32 bytes at least, for one purpose: a key
// derived from the SHA-256 of the file. Throws Error(kConfig) naming the path: not there, no
// regular file, another user's, readable by others, or too short.
Bytes32 read_secret_file(const std::string& path, std::string_view purpose);

}  // namespace coupler
