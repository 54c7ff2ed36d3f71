// JobHost: what the launcher offers its ranks: the store, and the job file that leads to it; and
// the ends that rank-shims report. The members are the launcher's main thread's.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "rank_end.h"
#include "rendezvous/store_server.h"
#include "rendezvous/unique_fd.h"

namespace coupler::cli {

class JobHost {
 public:
  JobHost();  // throws Error(kIo)

  // For COUPLER_JOB_FILE; it exists as long as this process.
  const std::string& job_file() const { return job_file_; }

  int wake_fd() const { return wake_.get(); }  // readable when reports wait
  std::vector<RankEnd> take_reports();

 private:
  void on_set(const std::string& key, const std::string& value);  // the server's thread

  UniqueFd wake_;
  std::mutex mutex_;
  std::vector<RankEnd> reports_;  // guarded by mutex_
  std::optional<StoreServer> server_;
  UniqueFd memory_file_;
  std::string job_file_;
};

}  // namespace coupler::cli
