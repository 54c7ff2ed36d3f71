#include "train/launch_call.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "io/durable_file.h"

namespace coupler {
namespace {

namespace fs = std::filesystem;
using detail::ObjectBytes;
using nlohmann::json;

constexpr const char* kFunction = "function";
constexpr const char* kArguments = "arguments.cbor";
constexpr const char* kResult = "result.cbor";
constexpr const char* kFailure = "failure-";

std::optional<std::string> read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  return std::string{std::istreambuf_iterator<char>(in), {}};
}

std::string text_of(const ObjectBytes& bytes) { return {bytes.begin(), bytes.end()}; }
ObjectBytes bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

// Of a rank that was killed in the middle of writing there is nothing: files appear whole.
void write(const fs::path& path, const std::string& text) { replace_file(path.string(), text); }

json to_json(const RankFailure& failure) {
  const ErrorDetail& detail = failure.error.detail();
  return {{"rank", failure.rank},
          {"when", failure.when},
          {"code", static_cast<int>(failure.error.code())},
          {"message", failure.error.what()},
          {"subject", detail.subject}};
}

RankFailure from_json(const json& value) {
  const int rank = value.at("rank").get<int>();
  // what() holds the hint already.
  return {.rank = rank,
          .when = value.at("when").get<int64_t>(),
          .error = Error(static_cast<ErrorCode>(value.at("code").get<int>()),
                         fmt::format("rank {}: {}", rank, value.at("message").get<std::string>()),
                         {.rank = rank, .subject = value.at("subject").get<std::string>()})};
}

}  // namespace

LaunchCall LaunchCall::make(const std::string& function, const ObjectBytes& arguments) {
  std::error_code failed;
  std::string path = (fs::temp_directory_path(failed) / "coupler-call-XXXXXX").string();
  if (failed || mkdtemp(path.data()) == nullptr) throw_io("make", path, errno);
  LaunchCall call(path);
  call.owned_ = true;
  write(fs::path(path) / kFunction, function);
  write(fs::path(path) / kArguments, text_of(arguments));
  return call;
}

LaunchCall::LaunchCall(LaunchCall&& other) noexcept
    : folder_(std::move(other.folder_)), owned_(std::exchange(other.owned_, false)) {}

LaunchCall::~LaunchCall() {
  std::error_code ignored;  // it lies among temporary files
  if (owned_) fs::remove_all(folder_, ignored);
}

std::string LaunchCall::outcome_file() const { return folder_ + "/outcome.json"; }

std::string LaunchCall::function() const {
  const auto text = read(fs::path(folder_) / kFunction);
  if (!text) throw_io("read", folder_ + "/" + kFunction, errno);
  return *text;
}

ObjectBytes LaunchCall::arguments() const {
  const auto text = read(fs::path(folder_) / kArguments);
  if (!text) throw_io("read", folder_ + "/" + kArguments, errno);
  return bytes_of(*text);
}

void LaunchCall::write_result(const ObjectBytes& result) const {
  write(fs::path(folder_) / kResult, text_of(result));
}

std::optional<ObjectBytes> LaunchCall::result() const {
  const auto text = read(fs::path(folder_) / kResult);
  return text ? std::optional(bytes_of(*text)) : std::nullopt;
}

void LaunchCall::write_failure(const RankFailure& failure) const {
  write(fs::path(folder_) / fmt::format("{}{}", kFailure, failure.rank),
        to_json(failure).dump(-1, ' ', true, json::error_handler_t::replace));
}

std::optional<RankFailure> LaunchCall::failure() const {
  std::optional<RankFailure> first;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    if (entry.path().filename().string().rfind(kFailure, 0) != 0) continue;
    const auto text = read(entry.path());
    if (!text) continue;
    RankFailure found = from_json(json::parse(*text));
    const auto place = [](const RankFailure& it) {
      return std::pair(it.is_consequence(), it.when);
    };
    if (!first || place(found) < place(*first)) first.emplace(std::move(found));
  }
  return first;
}

}  // namespace coupler
