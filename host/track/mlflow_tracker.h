// MlflowTracker: a run on an MLflow server, over its REST interface (2.0). From the environment, as
// MLflow's own client has it: MLFLOW_TRACKING_URI (needed), MLFLOW_EXPERIMENT_NAME (else the
// project), MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD,
// MLFLOW_TRACKING_INSECURE_TLS, MLFLOW_HTTP_REQUEST_TIMEOUT (seconds). Numbers are metrics, texts
// are tags, the run's hyper-parameters are parameters. Threads: see tracker.h.
#pragma once

#include <coupler/tracker.h>

#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "track/http_client.h"

namespace coupler {

class MlflowTracker : public Tracker {
 public:
  std::string name() const override { return "mlflow"; }
  // Reads the environment only: that no server answers is no reason not to train.
  void start(const TrackerRun& run) override;
  void connect() override;
  void log(const TrackedStep& entry) override;
  void flush() override;
  void finish() override;
  // The run's address once the server has made it.
  std::string location() const override;

 private:
  std::string experiment_id();
  // Sends "metrics", "params" or "tags", those of the batch that the server has not got.
  void send_batch(const char* kind, std::vector<std::string>& items, size_t most);
  // The answer. An error whose code is `known` is one, too; any other is thrown.
  nlohmann::json call(const std::string& method, const std::string& path, const std::string& body,
                      const std::string& known = "");

  std::optional<HttpClient> client_;
  std::string experiment_;
  TrackerRun run_;
  int64_t start_time_ = 0;
  std::vector<std::string> metrics_, params_, tags_;  // each a JSON object, not sent yet
  mutable std::mutex mutex_;
  std::string experiment_id_, run_id_;  // under the mutex
};

// A name as MLflow takes it: other characters become _, and at most 250 are kept.
std::string mlflow_name(const std::string& name);

}  // namespace coupler
