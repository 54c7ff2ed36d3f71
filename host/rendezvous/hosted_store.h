// A store hosted by rank 0, for ranks on one machine that nobody of ours launched (the user's own
// mpirun, or RANK and MASTER_PORT set by hand). The result is [any-thread].
//
// Rank 0 serves on a Unix socket in a folder only this user can enter ($XDG_RUNTIME_DIR/coupler,
// else $TMPDIR/coupler-<uid>, else /tmp/coupler-<uid>) and writes the job file (the socket's path,
// the secret, its process id and start time) there. The file's name is a hash of job_id, which all
// ranks know. Both are removed when the store is closed. A job file left behind by a killed rank 0
// is recognised by process id and start time and ignored or replaced; the socket beside it is
// removed by the next rank 0 of this user.
#pragma once

#include <memory>
#include <string>

#include "config/config.h"
#include "rendezvous/store.h"

namespace coupler {

// Throws Error(kConfig) where a living process hosts a job of the same id already, Error(kIo) for
// an unsafe folder, Error(kTimeout) naming rank 0 and the file where rank 0 does not appear in
// time (backend.timeout).
std::shared_ptr<Store> host_or_join_store(const std::string& job_id, int rank,
                                          const BackendConfig& backend);

// The folder described above, made where it is missing.
std::string private_runtime_folder();

}  // namespace coupler
