// JobHost: serves the store to a launcher's ranks and writes the job file that leads to it. It
// collects the ends that rank-shims report and the ranks lost alive, and sends orders to the shims.
// Call all members from the launcher's main thread.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/file_descriptor.h"
#include "cli/launch/rank_exit.h"
#include "cli/process/exit_watch.h"
#include "config/config.h"
#include "rendezvous/job_file.h"
#include "store/client.h"
#include "store/server.h"

namespace coupler::cli {

struct JobHostOptions {
  int processes = 1;
  std::string host = store::StoreServerOptions::kUnnamed;  // where the store listens
  std::optional<Bytes32> secret{};                         // empty: generates one
  bool tls = false;
  std::chrono::nanoseconds peer_timeout{};  // backend.peer_timeout
};
JobHostOptions job_host_options(const config::Config& config, int processes);

// What arrived since the last call.
struct JobEvents {
  std::vector<RankExit> reports;  // by shims
  // Ranks that are stopped or unreachable. Ranks that end are the caller's children or in reports.
  std::vector<store::PeerLoss> losses;
};

class JobHost {
 public:
  // Throws Error(kIo) naming the address.
  explicit JobHost(const JobHostOptions& options = {});

  // The value of COUPLER_JOB_FILE; the file exists as long as this process.
  const std::string& job_file() const { return job_file_; }

  int port() const { return address_.port; }

  int wake_fd() const { return wake_.get(); }  // readable when there is news
  JobEvents take_events();

  // By rank, the operation that a rank was in when it was notified of a lost peer.
  std::map<int, std::string> activities() const;

  // Registers a process of this machine as that rank, from its start on.
  void watch(int rank, long pid);
  // The ranks under shims that have ended since the last call, in the order in which they ended;
  // the shims' reports may arrive in another order.
  std::vector<int> take_ended();

  // Sends an order (rank_exit.h) to every rank-shim, in sequence; shims that start later also get
  // it.
  void tell_shims(int signal);

 private:
  void on_set(const std::string& key, const std::string& value);  // on the server's thread
  void on_lost(const store::PeerLoss& loss);                      // on the server's thread
  void wake() const;
  void await_end(int rank, long pid);

  UniqueFd wake_;
  std::vector<UniqueFd> watched_;  // pidfds
  ExitWatch ends_;                 // over watched_, by rank
  mutable std::mutex mutex_;
  std::vector<RankExit> reports_;  // guarded by mutex_
  // Reported by shims: rank, "process machine". Guarded by mutex_.
  std::vector<std::pair<int, std::string>> starts_;
  std::vector<store::PeerLoss> losses_;    // guarded by mutex_
  std::map<int, std::string> activities_;  // guarded by mutex_
  std::optional<store::StoreServer> server_;
  rendezvous::JobAddress address_;
  UniqueFd memory_file_;
  std::string job_file_;
  std::unique_ptr<store::StoreClient> client_;  // of our own server, created for the first order
  int orders_sent_ = 0;
};

}  // namespace coupler::cli
