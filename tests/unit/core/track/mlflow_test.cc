// The requests to an MLflow server, and the behavior if it is down, slow, broken or another server.
// check_mlflow.py uses a real server.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "captured_error.h"
#include "fake_server.h"
#include "http/http_client.h"
#include "track/mlflow_tracker.h"
#include "track/tracker_queue.h"

namespace coupler::track {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using Clock = TrackerQueue::Clock;
using Reply = FakeServer::Reply;
using Request = FakeServer::Request;

// The part of MLflow that a run needs; records what it receives.
class Server {
 public:
  std::optional<Reply> operator()(const Request& request) {
    const std::lock_guard lock(mutex);
    requests.push_back(request);
    const auto is = [&](const char* path) {
      return request.target.find(path) != std::string::npos;
    };
    if (is("experiments/get-by-name")) {
      return Reply{404, R"({"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "none"})"};
    }
    if (is("experiments/create")) return Reply{200, R"({"experiment_id": "4"})"};
    if (is("runs/create")) return Reply{200, R"({"run": {"info": {"run_id": "abc"}}})"};
    return Reply{};
  }
  // The bodies of the requests to this path.
  std::vector<json> bodies(const std::string& path) {
    const std::lock_guard lock(mutex);
    std::vector<json> result;
    for (const Request& request : requests) {
      if (request.target == "/api/2.0/mlflow/" + path) result.push_back(json::parse(request.body));
    }
    return result;
  }

  std::mutex mutex;
  std::vector<Request> requests;
};

class Mlflow : public ::testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }
  static void clear() {
    for (const char* name :
         {"MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME",
          "MLFLOW_TRACKING_PASSWORD", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_HTTP_REQUEST_TIMEOUT"}) {
      ::unsetenv(name);
    }
  }
  static std::string refusal(const TrackerRun& run = {}) {
    try {
      MlflowTracker().start(run);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  // Logs `count` entries through its own queue and ends it; returns the messages printed meanwhile.
  std::string log(int count, milliseconds within, milliseconds between = milliseconds(0)) {
    const CapturedError captured;
    auto tracker = std::make_shared<MlflowTracker>();
    tracker->start(run);
    TrackerQueue queue(tracker, {.flush_every = milliseconds(5), .first_retry = milliseconds(20)});
    for (int i = 0; i < count; ++i) {
      auto entry = std::make_shared<TrackedStep>();
      entry->values = {{"loss", 0.5}, {"bad name: %", std::nan("")}, {"note", std::string("n")}};
      entry->step = i;
      entry->time = 12.5;
      const auto before = Clock::now();
      queue.push(entry);
      EXPECT_LT(Clock::now() - before, milliseconds(500)) << "logging waited for the server";
      std::this_thread::sleep_for(between);
    }
    queue.end(Clock::now() + within);
    queue.wait_ended();
    lost = queue.lost();
    location = tracker->location();
    return captured.text();
  }

  TrackerRun run = {"proj ect", "first", "", {{"lr", 0.1}, {"bf16", true}}, 0};
  int64_t lost = 0;
  std::string location;
};

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_F(Mlflow, Run_IsCreatedLoggedAndFinished) {
  Server server;
  FakeServer http([&](const Request& request) { return server(request); });
  ::setenv("MLFLOW_TRACKING_URI", http.url().c_str(), 1);
  ::setenv("MLFLOW_TRACKING_TOKEN", "secret", 1);
  EXPECT_EQ(log(400, milliseconds(20000)), "");
  EXPECT_EQ(lost, 0);
  EXPECT_EQ(location, http.url() + "/#/experiments/4/runs/abc");
  ASSERT_FALSE(server.requests.empty());
  EXPECT_EQ(server.requests[0].target,
            "/api/2.0/mlflow/experiments/get-by-name?experiment_name=proj%20ect");
  for (const Request& request : server.requests) EXPECT_EQ(request.authorization, "Bearer secret");
  EXPECT_EQ(server.bodies("experiments/create").at(0)["name"], "proj ect");
  const json created = server.bodies("runs/create").at(0);
  EXPECT_EQ(created["experiment_id"], "4");
  EXPECT_EQ(created["run_name"], "first");
  size_t metrics = 0;
  json params;
  for (const json& body : server.bodies("runs/log-batch")) {
    EXPECT_EQ(body["run_id"], "abc");
    if (body.contains("params")) params = body["params"];
    if (body.contains("tags")) {
      EXPECT_EQ(body["tags"], json::parse(R"([{"key": "note", "value": "n"}])"));
    }
    if (!body.contains("metrics")) continue;
    EXPECT_LE(body["metrics"].size(), 1000u);
    for (const json& metric : body["metrics"]) {
      EXPECT_EQ(metric["step"], metrics / 2);
      EXPECT_EQ(metric["timestamp"], 12500);
      if (metrics % 2 == 0) {
        EXPECT_EQ(metric["key"], "loss");
        EXPECT_EQ(metric["value"], 0.5);
      } else {
        EXPECT_EQ(metric["key"], "bad name_ _");
        EXPECT_EQ(metric["value"], "NaN");
      }
      ++metrics;
    }
  }
  EXPECT_EQ(metrics, 800u);
  EXPECT_EQ(params,
            json::parse(R"([{"key": "lr", "value": "0.1"}, {"key": "bf16", "value": "true"}])"));
  EXPECT_EQ(server.bodies("runs/update").at(0)["status"], "FINISHED");
}

TEST_F(Mlflow, ImagesAndFiles_AreArtifacts_IfTheServerTakesThem) {
  std::string uri = "mlflow-artifacts:/4/abc/artifacts";
  std::mutex mutex;
  std::vector<Request> uploads;
  Server server;
  FakeServer http([&](const Request& request) -> std::optional<Reply> {
    const std::lock_guard lock(mutex);
    if (request.method == "PUT") {
      uploads.push_back(request);
      return Reply{};
    }
    if (request.target.find("runs/create") == std::string::npos) return server(request);
    return Reply{200, R"({"run": {"info": {"run_id": "abc", "artifact_uri": ")" + uri + "\"}}}"};
  });
  ::setenv("MLFLOW_TRACKING_URI", http.url().c_str(), 1);
  ::setenv("MLFLOW_TRACKING_TOKEN", "secret", 1);
  run.options = {{"run_name", std::string("named")}};
  const auto image = image_of_pixels("a b", 1, 1, 1, {7});
  const auto log_all = [&] {
    MlflowTracker tracker;
    tracker.start(run);
    tracker.connect();
    return std::array{tracker.log_image(image, 3, 0),
                      tracker.log_table({"t", {"x"}, {{1.5}}}, 3, 0),
                      tracker.log_artifact({__FILE__, "source"}, 3, 0)};
  };
  EXPECT_EQ(log_all(), (std::array{true, true, true}));
  ASSERT_EQ(uploads.size(), 3u);
  const std::string root = "/api/2.0/mlflow-artifacts/artifacts/4/abc/artifacts/";
  EXPECT_TRUE(uploads[0].target.starts_with(root + "images/a_b_3_")) << uploads[0].target;
  EXPECT_EQ(uploads[0].body, image.bytes);
  EXPECT_EQ(uploads[0].authorization, "Bearer secret");
  EXPECT_EQ(json::parse(uploads[1].body)["data"][0][0], 1.5);
  EXPECT_EQ(uploads[2].target, root + "source");
  EXPECT_GT(uploads[2].body.size(), 1000u);
  uri = "s3://bucket/4/abc";
  EXPECT_EQ(log_all(), (std::array{false, false, false}));
}

TEST_F(Mlflow, NoServer_TrainingGoesOn_AndTheAddressIsSaid) {
  unsigned short port = 0;
  {
    port = FakeServer([](const Request&) { return Reply{}; }).port();
  }
  const std::string url = "http://127.0.0.1:" + std::to_string(port);
  ::setenv("MLFLOW_TRACKING_URI", url.c_str(), 1);
  const std::string said = log(5, milliseconds(200));
  EXPECT_TRUE(says(said, "tracker 'mlflow' is unavailable; training continues")) << said;
  EXPECT_TRUE(says(said, url + " cannot be reached: Connection refused")) << said;
  EXPECT_TRUE(says(said, "check that the MLflow server runs there, or set MLFLOW_TRACKING_URI"))
      << said;
  EXPECT_TRUE(says(said, "of 5 entries 0 were dropped, 0 failed and 5 were not written")) << said;
}

TEST_F(Mlflow, ServerThatNeverAnswers_IsGivenUpOnInTime) {
  FakeServer http([](const Request&) { return std::nullopt; });
  ::setenv("MLFLOW_TRACKING_URI", http.url().c_str(), 1);
  ::setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1", 1);
  const auto start = Clock::now();
  const std::string said = log(3, milliseconds(2500));
  EXPECT_LT(Clock::now() - start, milliseconds(25000));
  EXPECT_TRUE(says(said, http.url() + " cannot be reached: no answer in 1000 ms")) << said;
  EXPECT_EQ(said.find("no answer"), said.rfind("no answer")) << "reported more than once: " << said;
  EXPECT_TRUE(says(said, "3 were not written")) << said;
}

TEST_F(Mlflow, ServerThatDiesInTheMiddle_AndComesBack_HasEverything) {
  Server server;
  std::atomic<int> batches = 0;
  FakeServer http([&](const Request& request) -> std::optional<Reply> {
    if (says(request.target, "log-batch") && says(request.body, "metrics")) {
      const int now = batches++;
      if (now == 1) return Reply{200, "{}", /*cut=*/true};
      if (now == 2) return Reply{503, "<html>gone</html>"};
    }
    return server(request);
  });
  ::setenv("MLFLOW_TRACKING_URI", http.url().c_str(), 1);
  const std::string said = log(60, milliseconds(20000), milliseconds(2));
  size_t metrics = 0;
  for (const json& body : server.bodies("runs/log-batch")) {
    if (body.contains("metrics")) metrics += body["metrics"].size();
  }
  EXPECT_EQ(metrics, 120u);
  EXPECT_EQ(lost, 0);
  EXPECT_TRUE(says(said, "is unavailable")) << said;
  EXPECT_TRUE(says(said, "tracker 'mlflow' works again")) << said;
}

TEST_F(Mlflow, WrongToken_DisablesIt_AndNamesTheVariables) {
  FakeServer http([](const Request&) { return Reply{401, R"({"message": "who are you"})"}; });
  ::setenv("MLFLOW_TRACKING_URI", http.url().c_str(), 1);
  const std::string said = log(3, milliseconds(20000));
  EXPECT_TRUE(says(said, "failed in connect and is disabled; training continues without it"))
      << said;
  EXPECT_TRUE(says(said,
                   "answers 401 to experiments/get-by-name?experiment_name=proj%20ect: who "
                   "are you"))
      << said;
  EXPECT_TRUE(says(said, "set MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME")) << said;
  EXPECT_EQ(lost, 3);
}

TEST_F(Mlflow, AnotherServer_IsSaidToBeNoMlflow) {
  FakeServer http([](const Request&) { return Reply{200, "<html>hello</html>"}; });
  ::setenv("MLFLOW_TRACKING_URI", http.url().c_str(), 1);
  const std::string said = log(1, milliseconds(20000));
  EXPECT_TRUE(says(said, "check that MLFLOW_TRACKING_URI is the address of an MLflow server"))
      << said;
}

TEST_F(Mlflow, BatchThatIsRefused_IsLost_AndTheNextGoesOn) {
  Server server;
  std::atomic<int> batches = 0;
  FakeServer http([&](const Request& request) -> std::optional<Reply> {
    if (says(request.body, "metrics") && batches++ == 0) {
      return Reply{400, R"({"error_code": "INVALID_PARAMETER_VALUE", "message": "no good"})"};
    }
    return server(request);
  });
  ::setenv("MLFLOW_TRACKING_URI", http.url().c_str(), 1);
  const std::string said = log(60, milliseconds(20000), milliseconds(2));
  EXPECT_TRUE(says(said, "tracker 'mlflow' failed in flush: ")) << said;
  EXPECT_TRUE(says(said, "no good")) << said;
  EXPECT_GT(lost, 0);
  EXPECT_LT(lost, 60);
  EXPECT_EQ(server.bodies("runs/update").size(), 1u);
}

TEST_F(Mlflow, RunThatIsNotThereAnyMore_IsNotTakenForSuccess) {
  Server server;
  FakeServer http([&](const Request& request) -> std::optional<Reply> {
    if (says(request.target, "log-batch") || says(request.target, "runs/update")) {
      return Reply{404, R"({"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "no run abc"})"};
    }
    return server(request);
  });
  ::setenv("MLFLOW_TRACKING_URI", http.url().c_str(), 1);
  const std::string said = log(3, milliseconds(20000));
  EXPECT_TRUE(says(said, "no run abc")) << said;
  EXPECT_EQ(lost, 3) << said;
}

TEST_F(Mlflow, ExperimentThatAnotherJobHasJustMade_IsTaken) {
  Server server;
  std::atomic<bool> made = false;
  FakeServer http([&](const Request& request) -> std::optional<Reply> {
    if (says(request.target, "experiments/create")) {
      made = true;
      return Reply{400, R"({"error_code": "RESOURCE_ALREADY_EXISTS", "message": "it is there"})"};
    }
    if (says(request.target, "get-by-name") && made) {
      return Reply{200, R"({"experiment": {"experiment_id": "9"}})"};
    }
    return server(request);
  });
  ::setenv("MLFLOW_TRACKING_URI", http.url().c_str(), 1);
  EXPECT_EQ(log(3, milliseconds(20000)), "");
  EXPECT_EQ(lost, 0);
  EXPECT_EQ(location, http.url() + "/#/experiments/9/runs/abc");
}

// A server may reject any other form of its name (RFC 9110, 7.2).
TEST_F(Mlflow, HostOfAnIpv6Address_IsInBrackets) {
  std::string host;
  FakeServer http([&](const Request& request) {
    host = request.host;
    return Reply{};
  });
  const std::string place = "[::ffff:127.0.0.1]:" + std::to_string(http.port());
  http::HttpClient client(http::parse_http_address("http://" + place, "X"), {});
  try {
    client.send({});
  } catch (const http::HttpUnreachable& error) {
    GTEST_SKIP() << "no IPv6 here: " << error.what();
  }
  EXPECT_EQ(host, place);
}

TEST_F(Mlflow, WrongEnvironment_IsSaidAtTheStart) {
  EXPECT_TRUE(says(refusal(), "MLFLOW_TRACKING_URI is not set")) << refusal();
  EXPECT_TRUE(says(refusal(), "mlflow server --port 5000"));
  ::setenv("MLFLOW_TRACKING_URI", "./mlruns", 1);
  EXPECT_TRUE(says(refusal(), "MLFLOW_TRACKING_URI: './mlruns' is not an HTTP address"));
  EXPECT_TRUE(says(refusal(), "http://HOST:PORT"));
  ::setenv("MLFLOW_TRACKING_URI", "http://me:secret@host", 1);
  EXPECT_TRUE(says(refusal(), "their own variables"));
  EXPECT_FALSE(says(refusal(), "secret"));
  ::setenv("MLFLOW_TRACKING_URI", "http://host:port", 1);
  EXPECT_TRUE(says(refusal(), "a port that is not a number"));
  ::setenv("MLFLOW_TRACKING_URI", "http://host", 1);
  ::setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "soon", 1);
  EXPECT_TRUE(says(refusal(), "MLFLOW_HTTP_REQUEST_TIMEOUT is 'soon'"));
  ::unsetenv("MLFLOW_HTTP_REQUEST_TIMEOUT");
  ::setenv("MLFLOW_TRACKING_TOKEN", "a\nHost: b", 1);
  EXPECT_TRUE(says(refusal(), "MLFLOW_TRACKING_TOKEN contains a line break"));
}

TEST(MlflowNames, AreThoseThatItTakes) {
  EXPECT_EQ(mlflow_name("train/loss"), "train/loss");
  EXPECT_EQ(mlflow_name("a:b%c"), "a_b_c");
  EXPECT_EQ(mlflow_name(std::string("a\0b", 3)), "a_b");
  EXPECT_EQ(mlflow_name("/a//b/../c/"), "_a_/b_._/c_");
  EXPECT_EQ(mlflow_name(std::string(300, 'x')).size(), 250u);
}

}  // namespace
}  // namespace coupler::track
