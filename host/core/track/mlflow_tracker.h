// MlflowTracker: a run on an MLflow server, through its REST API (2.0). It reads the variables of
// MLflow's own client: MLFLOW_TRACKING_URI (required), MLFLOW_EXPERIMENT_NAME (default: the
// project), MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD,
// MLFLOW_TRACKING_INSECURE_TLS, MLFLOW_HTTP_REQUEST_TIMEOUT (seconds). Numbers become metrics,
// strings tags, the run's hyperparameters parameters, images and files artifacts. Threads: see
// tracker.h.
#pragma once

#include <coupler/tracker.h>

#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "http/http_client.h"

namespace coupler::track {

class MlflowTracker : public Tracker {
 public:
  std::string name() const override { return "mlflow"; }
  // Only reads the environment: training also starts without a reachable server.
  void start(const TrackerRun& run) override;
  void connect() override;
  void log(const TrackedStep& entry) override;
  bool log_image(const TrackedImage& image, int64_t step, double time) override;
  bool log_table(const TrackedTable& table, int64_t step, double time) override;
  bool log_artifact(const TrackedArtifact& artifact, int64_t step, double time) override;
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

  // Uploads through the server; false if it does not offer that for this run.
  bool upload(const std::string& path, const std::string& bytes);

  http::HttpAddress address_;
  http::HttpOptions options_;
  std::string artifacts_;  // the run's artifact_uri
  std::optional<http::HttpClient> client_;
  std::string authorization_;  // the header's value; "": none
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
