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

#include "config/config.h"
#include "store/store.h"

namespace coupler {

// Throws Error(kConfig) if a living process already hosts a job with the same id, Error(kIo) for an
// unsafe folder, and Error(kTimeout), naming rank 0 and the file, if rank 0 does not appear in time
// (backend.timeout).
std::shared_ptr<Store> host_or_join_store(const std::string& job_id, int rank,
                                          const BackendConfig& backend);

// The folder described above, created if missing.
std::string private_runtime_folder();

}  // namespace coupler
