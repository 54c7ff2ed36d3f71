// The job file: where a job's store is and the secret that opens it. Coupler's launcher keeps it in
// an anonymous memory file which the ranks open through /proc/<launcher>/fd/<n>, so that it is on
// no disk, in no argument list, and gone with the launcher; rank 0 of a job without launcher writes
// it to a private folder. Plain functions, [any-thread].
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/secret.h"
#include "rendezvous/unique_fd.h"

namespace coupler {

struct JobAddress {
  std::string host;  // or the path of a Unix socket
  int port = 0;      // of a Unix socket: 0
  Bytes32 secret{};
  bool tls = false;  // the store speaks TLS, and nothing else
};

std::string format_job_file(const JobAddress& job);
std::optional<JobAddress> parse_job_file(std::string_view text);  // nothing: it is none

// A memory file with the job's address; readable for this user only, closed on exec.
UniqueFd make_job_memory_file(const JobAddress& job);

// Reads a job file. Throws Error(kConfig) naming the path: not there, another user's, readable by
// others, or not a job file.
JobAddress read_job_file(const std::string& path);

}  // namespace coupler
