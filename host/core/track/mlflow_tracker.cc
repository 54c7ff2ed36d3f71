#include "track/mlflow_tracker.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/process.h"
#include "base/text.h"
#include "track/file_trackers.h"

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

std::string base64(const std::string& text) {
  std::string out(4 * ((text.size() + 2) / 3) + 1, '\0');
  const int size = ::EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                                     reinterpret_cast<const unsigned char*>(text.data()),
                                     static_cast<int>(text.size()));
  out.resize(static_cast<size_t>(size));
  return out;
}

std::string authorization() {
  const std::string token = environment_value("MLFLOW_TRACKING_TOKEN");
  const std::string user = environment_value("MLFLOW_TRACKING_USERNAME");
  if (token.find_first_of("\r\n") != std::string::npos) {
    fail_config("MLFLOW_TRACKING_TOKEN contains a line break", "MLFLOW_TRACKING_TOKEN",
                "set it to only the token");
  }
  if (!user.empty()) {
    return "Basic " + base64(user + ":" + environment_value("MLFLOW_TRACKING_PASSWORD"));
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

int64_t now_in_milliseconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

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
  HttpOptions options;
  options.authorization = authorization();
  options.timeout = request_timeout();
  options.verify = environment_value("MLFLOW_TRACKING_INSECURE_TLS") != "true";
  client_.emplace(parse_http_address(uri, "MLFLOW_TRACKING_URI"), options);
  run_ = run;
  experiment_ = environment_value("MLFLOW_EXPERIMENT_NAME");
  if (experiment_.empty()) experiment_ = run.project;
  start_time_ = now_in_milliseconds();
}

json MlflowTracker::call(const std::string& method, const std::string& path,
                         const std::string& body, const std::string& known) {
  HttpReply reply;
  try {
    reply = client_->send(method, "/api/2.0/mlflow/" + path, body);
  } catch (const TrackerUnavailable& error) {
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
  const std::string by_name = "experiments/get-by-name?experiment_name=" + url_encoded(name);
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
  const json made = call("POST", "runs/create", body.dump());
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
  body["end_time"] = now_in_milliseconds();
  call("POST", "runs/update", body.dump());
}

std::string MlflowTracker::location() const {
  const std::lock_guard lock(mutex_);
  if (run_id_.empty()) return client_ ? client_->url() : "";
  return fmt::format("{}/#/experiments/{}/runs/{}", client_->url(), experiment_id_, run_id_);
}

}  // namespace coupler::track
