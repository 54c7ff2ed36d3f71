#include "track/mlflow_tracker.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/process.h"
#include "base/text.h"
#include "base/units.h"
#include "track/file_trackers.h"
#include "track/media.h"

namespace coupler::track {
namespace {

using nlohmann::json;

// The server's limits for one request and for one string.
constexpr size_t kMetrics = 1000;
constexpr size_t kParams = 100;
constexpr size_t kTags = 100;
constexpr size_t kLongestKey = 250;
constexpr size_t kLongestParam = 6000;
constexpr size_t kLongestTag = 5000;
constexpr unsigned kTooManyRequests = 429;
constexpr auto kUploadTimeout = std::chrono::minutes(5);
constexpr uintmax_t kLargestArtifact = uintmax_t{2} << 30;

std::string authorization() {
  const std::string token = environment_value("MLFLOW_TRACKING_TOKEN");
  const std::string user = environment_value("MLFLOW_TRACKING_USERNAME");
  if (token.find_first_of("\r\n") != std::string::npos) {
    fail_config("MLFLOW_TRACKING_TOKEN contains a line break", "MLFLOW_TRACKING_TOKEN",
                "set it to only the token");
  }
  if (!user.empty()) {
    return http::basic_authorization(user, environment_value("MLFLOW_TRACKING_PASSWORD"));
  }
  return token.empty() ? "" : "Bearer " + token;
}

std::chrono::milliseconds request_timeout() {
  const std::string text = environment_value("MLFLOW_HTTP_REQUEST_TIMEOUT");
  if (text.empty()) return std::chrono::seconds(10);
  const int seconds = to_number<int>(text).value_or(0);
  if (seconds < 1) {
    fail_config(fmt::format("MLFLOW_HTTP_REQUEST_TIMEOUT is '{}'", text),
                "MLFLOW_HTTP_REQUEST_TIMEOUT", "set it to a number of seconds");
  }
  return std::chrono::seconds(seconds);
}

int64_t milliseconds(double seconds) { return std::llround(seconds * 1000); }

// Truncates between two characters.
std::string at_most(std::string text, size_t limit) {
  if (text.size() <= limit) return text;
  while (limit > 0 && (static_cast<unsigned char>(text[limit]) & 0xc0) == 0x80) --limit;
  text.resize(limit);
  return text;
}

// Adds {"key": …, "value": …} to the items, or replaces that key's item: the server rejects
// duplicate keys in one request.
void set_pair(std::vector<std::string>& items, const std::string& key, const std::string& value) {
  std::string item = "{\"key\": ";
  append_json_text(item, mlflow_name(key));
  item += ", \"value\": ";
  const std::string_view begin = item;
  const auto same = std::find_if(items.begin(), items.end(), [&](const std::string& other) {
    return other.starts_with(begin);
  });
  append_json_text(item, value);
  item += '}';
  if (same == items.end()) {
    items.push_back(std::move(item));
  } else {
    *same = std::move(item);
  }
}

// "RESOURCE_DOES_NOT_EXIST", if the reply is an MLflow error.
std::string error_in(const json& answer) {
  const auto code = answer.is_object() ? answer.find("error_code") : answer.end();
  return code != answer.end() && code->is_string() ? code->get<std::string>() : "";
}

// The message of an error reply, on one line.
std::string message_in(const std::string& body) {
  const json parsed = json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_object() && parsed.contains("message") && parsed["message"].is_string()) {
    return parsed["message"].get<std::string>();
  }
  return at_most(body, 200);
}

}  // namespace

std::string mlflow_name(const std::string& name) {
  std::string result = at_most(name, kLongestKey);
  std::replace_if(
      result.begin(), result.end(),
      [](char c) {
        const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        return !letter && !(c >= '0' && c <= '9') &&
               std::string_view("_-. /").find(c) == std::string_view::npos;
      },
      '_');
  // The server treats names as paths, and rejects those that are not normalized.
  for (const char* wrong : {"//", "./", "/."}) {
    for (size_t at = 0; (at = result.find(wrong)) != std::string::npos;) result[at] = '_';
  }
  if (result.front() == '/' || result.front() == '.') result.front() = '_';
  if (result.back() == '/' || result.back() == '.') result.back() = '_';
  return result;
}

void MlflowTracker::start(const TrackerRun& run) {
  const std::string uri = environment_value("MLFLOW_TRACKING_URI");
  if (uri.empty()) {
    fail_config("the tracker 'mlflow' is requested, but MLFLOW_TRACKING_URI is not set",
                "MLFLOW_TRACKING_URI",
                "start a server (`mlflow server --port 5000`) and set "
                "MLFLOW_TRACKING_URI=http://127.0.0.1:5000");
  }
  check_options(run, name(), {"run_name", "experiment_name", "description"});
  authorization_ = authorization();
  options_.timeout = request_timeout();
  options_.verify = environment_value("MLFLOW_TRACKING_INSECURE_TLS") != "true";
  address_ = http::parse_http_address(uri, "MLFLOW_TRACKING_URI");
  client_.emplace(address_, options_);
  run_ = run;
  const std::string run_name = option_of(run, "run_name");
  if (!run_name.empty()) run_.run_name = run_name;
  experiment_ = option_of(run, "experiment_name", "MLFLOW_EXPERIMENT_NAME");
  if (experiment_.empty()) experiment_ = run.project;
  start_time_ = milliseconds(seconds_since_epoch());
}

json MlflowTracker::call(const std::string& method, const std::string& path,
                         const std::string& body, const std::string& known) {
  http::HttpRequest request{.method = method, .target = "/api/2.0/mlflow/" + path, .body = body};
  if (!authorization_.empty()) request.headers.emplace_back("Authorization", authorization_);
  if (!body.empty()) request.headers.emplace_back("Content-Type", "application/json");
  http::HttpReply reply;
  try {
    reply = client_->send(request);
  } catch (const http::HttpUnreachable& error) {
    throw TrackerUnavailable(
        error.what(),
        {.subject = client_->url(),
         .hint = "check that the MLflow server runs there, or set MLFLOW_TRACKING_URI"});
  }
  if (reply.status >= 500 || reply.status == kTooManyRequests) {
    throw TrackerUnavailable(
        fmt::format("{} answers {} to {}: {}", client_->url(), reply.status, path,
                    message_in(reply.body)),
        {.subject = client_->url(), .hint = "see the log of the MLflow server"});
  }
  json parsed = json::parse(reply.body, nullptr, /*allow_exceptions=*/false);
  if (reply.status == 200 && parsed.is_object()) return parsed;
  if (!known.empty() && error_in(parsed) == known) return parsed;
  const char* hint = "check that MLFLOW_TRACKING_URI is the address of an MLflow server";
  if (reply.status == 401 || reply.status == 403) {
    hint = "set MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD";
  }
  throw Error(ErrorCode::kIo,
              fmt::format("{} answers {} to {}: {}", client_->url(), reply.status, path,
                          message_in(reply.body)),
              {.subject = client_->url(), .hint = hint});
}

std::string MlflowTracker::experiment_id() {
  const std::string name = as_utf8(experiment_);
  const std::string by_name = "experiments/get-by-name?experiment_name=" + http::url_encoded(name);
  const json found = call("GET", by_name, "", "RESOURCE_DOES_NOT_EXIST");
  if (found.contains("experiment")) return found["experiment"].at("experiment_id");
  json body;
  body["name"] = name;
  const json made = call("POST", "experiments/create", body.dump(), "RESOURCE_ALREADY_EXISTS");
  if (made.contains("experiment_id")) return made["experiment_id"];
  // Another job that started at the same time has just created it.
  return call("GET", by_name, "").at("experiment").at("experiment_id");
}

void MlflowTracker::connect() {
  const std::string experiment = experiment_id();
  json body;
  body["experiment_id"] = experiment;
  body["start_time"] = start_time_;
  if (!run_.run_name.empty()) body["run_name"] = as_utf8(run_.run_name);
  body["tags"] = json::array({{{"key", "mlflow.source.name"}, {"value", "coupler"}}});
  const std::string description = option_of(run_, "description");
  if (!description.empty()) {
    body["tags"].push_back({{"key", "mlflow.note.content"}, {"value", as_utf8(description)}});
  }
  const json made = call("POST", "runs/create", body.dump());
  artifacts_ = made.at("run").at("info").value("artifact_uri", "");
  {
    const std::lock_guard lock(mutex_);
    experiment_id_ = experiment;
    run_id_ = made.at("run").at("info").at("run_id");
  }
  for (const auto& [name, value] : run_.config) {
    set_pair(params_, name, at_most(as_utf8(text_of(value)), kLongestParam));
  }
}

void MlflowTracker::log(const TrackedStep& entry) {
  for (const auto& [name, value] : entry.values) {
    const auto number = number_of(value);
    if (!number) {
      set_pair(tags_, name, at_most(as_utf8(std::get<std::string>(value)), kLongestTag));
      continue;
    }
    std::string metric = "{\"key\": ";
    append_json_text(metric, mlflow_name(name));
    metric += ", \"value\": ";
    append_json_value(metric, *number);
    fmt::format_to(std::back_inserter(metric), ", \"timestamp\": {}, \"step\": {}}}",
                   milliseconds(entry.time), entry.step);
    metrics_.push_back(std::move(metric));
  }
}

bool MlflowTracker::upload(const std::string& path, const std::string& bytes) {
  // Servers that store artifacts themselves have such URIs; others name a bucket or a folder.
  constexpr std::string_view kScheme = "mlflow-artifacts:";
  if (!artifacts_.starts_with(kScheme)) return false;
  std::string root = artifacts_.substr(kScheme.size());
  if (root.starts_with("//")) root.erase(0, std::min(root.find('/', 2), root.size()));
  while (root.starts_with('/')) root.erase(0, 1);
  http::HttpRequest request{.method = "PUT",
                            .target = "/api/2.0/mlflow-artifacts/artifacts/" +
                                      http::url_encoded(fmt::format("{}/{}", root, path), "/"),
                            .headers = {{"Content-Type", "application/octet-stream"}},
                            .body = bytes};
  if (!authorization_.empty()) request.headers.emplace_back("Authorization", authorization_);
  http::HttpOptions options = options_;
  options.timeout = std::max<std::chrono::milliseconds>(options.timeout, kUploadTimeout);
  http::HttpReply reply;
  try {
    reply = http::HttpClient(address_, options).send(request);
  } catch (const http::HttpUnreachable& error) {
    throw TrackerUnavailable(error.what(), {.subject = client_->url()});
  }
  const std::string message = fmt::format("{} answers {} to the artifact {}: {}", client_->url(),
                                          reply.status, path, message_in(reply.body));
  if (reply.status >= 500 || reply.status == kTooManyRequests) {
    throw TrackerUnavailable(message, {.subject = client_->url()});
  }
  if (reply.status / 100 != 2) {
    throw Error(ErrorCode::kIo, message,
                {.subject = client_->url(), .hint = "see the log of the MLflow server"});
  }
  return true;
}

bool MlflowTracker::log_image(const TrackedImage& image, int64_t step, double /*time*/) {
  return upload("images/" + media_name(image.name, step, image.format), image.bytes);
}

bool MlflowTracker::log_table(const TrackedTable& table, int64_t step, double /*time*/) {
  return upload("tables/" + media_name(table.name, step, "json"), table_json(table));
}

bool MlflowTracker::log_artifact(const TrackedArtifact& artifact, int64_t /*step*/,
                                 double /*time*/) {
  namespace fs = std::filesystem;
  const auto send = [&](const fs::path& file, const std::string& as) {
    std::error_code error;
    const uintmax_t size = fs::file_size(file, error);
    std::ifstream in(file, std::ios::binary);
    if (error || !in || size > kLargestArtifact) {
      throw Error(ErrorCode::kIo,
                  fmt::format("artifact '{}': {} {}", artifact.name, file.string(),
                              error || !in ? "cannot be read" : "is larger than 2 GiB"),
                  {.subject = file.string(),
                   .hint = "keep it until end_training; upload larger files with mlflow itself"});
    }
    return upload(as, {std::istreambuf_iterator<char>(in), {}});
  };
  for (const ArtifactFile& file : files_of(artifact)) {
    if (!send(file.path, file.kept_as)) return false;
  }
  return true;
}

void MlflowTracker::send_batch(const char* kind, std::vector<std::string>& items, size_t most) {
  while (!items.empty()) {
    const auto count = static_cast<std::ptrdiff_t>(std::min(items.size(), most));
    const auto end = items.begin() + count;
    std::string body = fmt::format("{{\"run_id\": \"{}\", \"{}\": [", run_id_, kind);
    for (auto item = items.begin(); item != end; ++item) {
      if (item != items.begin()) body += ", ";
      body += *item;
    }
    body += "]}";
    try {
      // A batch whose reply was lost is sent again: the server keeps only one of equal values.
      call("POST", "runs/log-batch", body);
    } catch (const TrackerUnavailable&) {
      throw;
    } catch (const Error&) {
      items.erase(items.begin(), end);  // it would be rejected again
      throw;
    }
    items.erase(items.begin(), end);
  }
}

void MlflowTracker::flush() {
  send_batch("params", params_, kParams);
  send_batch("tags", tags_, kTags);
  send_batch("metrics", metrics_, kMetrics);
}

void MlflowTracker::finish() {
  flush();
  json body;
  body["run_id"] = run_id_;
  body["status"] = "FINISHED";
  body["end_time"] = milliseconds(seconds_since_epoch());
  call("POST", "runs/update", body.dump());
}

std::string MlflowTracker::location() const {
  const std::lock_guard lock(mutex_);
  if (run_id_.empty()) return client_ ? client_->url() : "";
  return fmt::format("{}/#/experiments/{}/runs/{}", client_->url(), experiment_id_, run_id_);
}

}  // namespace coupler::track
