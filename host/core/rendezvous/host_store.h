// A store hosted by rank 0, for ranks on one machine that Coupler did not launch (the user's own
// mpirun, or RANK and MASTER_PORT set by hand). The result is [any-thread].
//
// Rank 0 serves on a Unix socket in a folder that only this user can enter
// ($XDG_RUNTIME_DIR/coupler, else $TMPDIR/coupler-<uid>, else /tmp/coupler-<uid>) and writes the
// job file (the socket's path, the secret, its process id and start time) there. The file's name is
// a hash of job_id, which all ranks know. Closing the store removes both. A job file left by a
// killed rank 0 is recognized by process id and start time, and ignored or replaced; this user's
// next rank 0 removes the socket next to it.
#pragma once

#include <memory>
#include <string>

#include "base/sha256.h"
#include "config/config.h"
#include "rendezvous/process_info.h"
#include "store/store.h"

namespace coupler::rendezvous {

// Throws Error(kConfig) if a living process already hosts a job with the same id, Error(kIo) for an
// unsafe folder, and Error(kTimeout), naming rank 0 and the file, if rank 0 does not appear in time
// (backend.timeout).
std::shared_ptr<store::Store> host_or_join_store(const std::string& job_id, int rank,
                                                 const config::BackendConfig& backend);

// The folder described above, created if missing.
std::string private_runtime_folder();

// A store hosted by rank 0, for ranks on several machines that were not all started by one `coupler
// launch` or torchrun agent (`coupler launch` on each machine, mpirun, srun, deepspeed, pods). The
// result is [any-thread].
//
// The ranks meet at MASTER_ADDR:MASTER_PORT, where rank 0 listens: on the address of
// backend.interface, else on MASTER_ADDR itself, which must then belong to rank 0's machine.
// launch.secret_file, which all machines have, opens the store.

// Throws Error(kConfig) naming what is missing (MASTER_ADDR, the secret file, an interface), and
// what StoreServer and StoreClient throw. Other ranks wait for rank 0 until backend.timeout.
std::shared_ptr<store::Store> host_or_join_network_store(const ProcessInfo& process,
                                                         const config::Config& config);

// The same for ranks that already share a store, that of torchrun's agent: from it they learn where
// rank 0 serves, on a port of its own. Without launch.secret_file, the secret is in that store too,
// readable by anyone who reaches it.
std::shared_ptr<store::Store> host_or_join_through(store::Store& agent, const ProcessInfo& process,
                                                   const config::Config& config);

// The secret shared by all processes that have this file (at least 32 bytes), for one purpose: a
// key derived from the file's SHA-256. Throws Error(kConfig) naming the path if the file is
// missing, not regular, another user's, readable by others, or too short.
Bytes32 read_secret_file(const std::string& path, std::string_view purpose);

}  // namespace coupler::rendezvous
