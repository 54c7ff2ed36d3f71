// JobHost: what the launcher offers its ranks: the store, and the job file that leads to it; the
// ends that rank-shims report, and what it tells them. The members are the launcher's main
// thread's.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "rank_end.h"
#include "rendezvous/job_file.h"
#include "rendezvous/store_client.h"
#include "rendezvous/store_server.h"
#include "rendezvous/unique_fd.h"

namespace coupler::cli {

struct JobHostOptions {
  int processes = 1;
  bool tls = false;
};

class JobHost {
 public:
  // Throws Error(kIo).
  explicit JobHost(const JobHostOptions& options = {});

  // For COUPLER_JOB_FILE; it exists as long as this process.
  const std::string& job_file() const { return job_file_; }

  int wake_fd() const { return wake_.get(); }  // readable when reports wait
  std::vector<RankEnd> take_reports();

  // To every rank-shim, in order; shims that come later hear it too.
  void tell_shims(ShimOrder order);

 private:
  void on_set(const std::string& key, const std::string& value);  // the server's thread

  UniqueFd wake_;
  std::mutex mutex_;
  std::vector<RankEnd> reports_;  // guarded by mutex_
  std::optional<StoreServer> server_;
  JobAddress address_;
  UniqueFd memory_file_;
  std::string job_file_;
  std::unique_ptr<StoreClient> client_;  // of our own server, made when there is something to tell
  int told_ = 0;
};

}  // namespace coupler::cli
