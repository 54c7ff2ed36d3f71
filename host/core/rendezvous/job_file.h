// The job file holds the address of a job's store and the secret that opens it. Coupler's launcher
// keeps it in an anonymous memory file that the ranks open through /proc/<launcher>/fd/<n>: it is
// never on disk or in an argument list, and disappears with the launcher. Without a launcher, rank
// 0 writes it to a private folder. Plain functions, [any-thread].
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/file_descriptor.h"
#include "base/sha256.h"
#include "config/config.h"
#include "rendezvous/process_info.h"
#include "store/store.h"

namespace coupler::rendezvous {

struct JobAddress {
  std::string host;  // or the path of a Unix socket
  int port = 0;      // 0 for a Unix socket
  Bytes32 secret{};
  bool tls = false;  // the store speaks TLS, and nothing else
};

std::string format_job_file(const JobAddress& job);
std::optional<JobAddress> parse_job_file(std::string_view text);  // nullopt: malformed

// A memory file with the job's address; readable by this user only, close-on-exec.
UniqueFd make_job_memory_file(const JobAddress& job);

// Reads a job file. Throws Error(kConfig) naming the path if the file is missing, belongs to
// another user, is readable by others, or is not a job file.
JobAddress read_job_file(const std::string& path);

// Joins the job's store: the launcher's, torchrun's own, or one hosted by rank 0, on one machine
// or for several (rendezvous/host_store.h); with world size 1, a store in this process's
// memory. Throws Error(kPeerLost or kTimeout) naming the address.
std::shared_ptr<store::Store> open_job_store(const ProcessInfo& process,
                                             const config::Config& config);

}  // namespace coupler::rendezvous
