// JobHost: what the launcher offers its ranks: the store, and the job file that leads to it; the
// ends that rank-shims report and the ranks that are lost alive, and what it tells the shims. The
// members are the launcher's main thread's.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/launch/rank_end.h"
#include "cli/process/end_watch.h"
#include "config/config.h"
#include "rendezvous/job_file.h"
#include "rendezvous/store_client.h"
#include "rendezvous/store_server.h"
#include "rendezvous/unique_fd.h"

namespace coupler::cli {

struct JobHostOptions {
  int processes = 1;
  std::string host = StoreServerOptions::kUnnamed;  // where the store listens
  std::optional<Bytes32> secret{};                  // nothing: one of its own
  bool tls = false;
  std::chrono::nanoseconds peer_timeout{};  // backend.peer_timeout
};
JobHostOptions job_host_options(const Config& config, int processes);

// What was heard since the last time.
struct JobNews {
  std::vector<RankEnd> reports;  // of shims
  // Ranks that are stopped or cannot be reached; those that end are the caller's children, or
  // reported.
  std::vector<PeerLoss> losses;
};

class JobHost {
 public:
  // Throws Error(kIo) naming the address.
  explicit JobHost(const JobHostOptions& options = {});

  // For COUPLER_JOB_FILE; it exists as long as this process.
  const std::string& job_file() const { return job_file_; }

  int port() const { return address_.port; }

  int wake_fd() const { return wake_.get(); }  // readable when there is news
  JobNews take_news();

  // By rank, what those who were told of a lost one were in.
  std::map<int, std::string> standings() const;

  // Says which process of this machine is that rank, from its start on.
  void watch(int rank, long pid);
  // Of the ranks below shims those that have ended since the last call, in the order of their ends:
  // the shims' reports may come in another one.
  std::vector<int> take_ended();

  // To every rank-shim, in order; shims that come later hear it too.
  void tell_shims(ShimOrder order);

 private:
  void on_set(const std::string& key, const std::string& value);  // on the server's thread, as are
  void on_lost(const PeerLoss& loss);                             // these two
  void wake() const;
  void await_end(int rank, long pid);

  UniqueFd wake_;
  std::vector<UniqueFd> watched_;  // pidfds
  EndWatch ends_;                  // over them, by rank
  mutable std::mutex mutex_;
  std::vector<RankEnd> reports_;  // guarded by mutex_
  // Of shims: rank, "process machine". Guarded by mutex_.
  std::vector<std::pair<int, std::string>> starts_;
  std::vector<PeerLoss> losses_;          // guarded by mutex_
  std::map<int, std::string> standings_;  // guarded by mutex_
  std::optional<StoreServer> server_;
  JobAddress address_;
  UniqueFd memory_file_;
  std::string job_file_;
  std::unique_ptr<StoreClient> client_;  // of our own server, made when there is something to tell
  int told_ = 0;
};

}  // namespace coupler::cli
