// MlflowTracker: a run on an MLflow server, through its REST API (2.0). It reads the variables of
// MLflow's own client: MLFLOW_TRACKING_URI (required), MLFLOW_EXPERIMENT_NAME (default: the
// project), MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD,
// MLFLOW_TRACKING_INSECURE_TLS, MLFLOW_HTTP_REQUEST_TIMEOUT (seconds). Numbers become metrics,
// strings tags, the run's hyperparameters parameters. Threads: see tracker.h.
#pragma once

#include <coupler/tracker.h>

#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "track/http_client.h"

namespace coupler::track {

class MlflowTracker : public Tracker {
 public:
  std::string name() const override { return "mlflow"; }
  // Only reads the environment: training also starts without a reachable server.
  void start(const TrackerRun& run) override;
  void connect() override;
  void log(const TrackedStep& entry) override;
  void flush() override;
  void finish() override;
  // The run's address once the server has created it.
  std::string location() const override;

 private:
  std::string experiment_id();
  // Sends the "metrics", "params" or "tags" that the server has not received yet.
  void send_batch(const char* kind, std::vector<std::string>& items, size_t most);
  // The reply. An error whose code is `known` is returned as a reply, too; any other is thrown.
  nlohmann::json call(const std::string& method, const std::string& path, const std::string& body,
                      const std::string& known = "");

  std::optional<HttpClient> client_;
  std::string experiment_;
  TrackerRun run_;
  int64_t start_time_ = 0;
  std::vector<std::string> metrics_, params_, tags_;  // JSON objects, not sent yet
  mutable std::mutex mutex_;
  std::string experiment_id_, run_id_;  // under the mutex
};

// A name that MLflow accepts: other characters become _, and at most 250 are kept.
std::string mlflow_name(const std::string& name);

}  // namespace coupler::track
