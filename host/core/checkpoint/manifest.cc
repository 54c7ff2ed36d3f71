#include "checkpoint/manifest.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <ctime>
#include <limits>
#include <string>
#include <utility>

#include "base/file_text.h"
#include "base/strict_json.h"
#include "checkpoint/manifest_rules.h"

namespace coupler::checkpoint {
namespace {

// Rejects what JSON cannot represent or parse() would not read back unchanged.
void check_value(const nlohmann::json& value, const std::string& key, int nesting) {
  const auto refuse = [&](const std::string& rule) { throw JsonProblem{key, rule}; };
  if (value.is_structured() && nesting >= kMaxNesting)
    refuse(fmt::format("more than {} levels of brackets", kMaxNesting));
  if (value.is_binary() || value.is_discarded()) refuse("is a type that JSON cannot represent");
  if (value.is_number_float() && !std::isfinite(value.get<double>()))
    refuse("is not a finite number, as JSON requires");
  if (value.is_object()) {
    for (const auto& [name, item] : value.items())
      check_value(item, fmt::format("{}.{}", key, shown(name)), nesting + 1);
  } else if (value.is_array()) {
    for (size_t i = 0; i < value.size(); ++i)
      check_value(value[i], fmt::format("{}[{}]", key, i), nesting + 1);
  }
}

std::string to_text(const Manifest& manifest) {
  nlohmann::ordered_json json = {{"format", manifest.save.empty() ? kFormatWithoutSave : kFormat},
                                 {"number", manifest.number}};
  if (!manifest.save.empty()) json["save"] = manifest.save;
  json["steps"] = manifest.steps;
  json["world"] = manifest.world;
  json["backend"] = manifest.backend;
  json["plan"] = manifest.plan;
  json["coupler_version"] = manifest.coupler_version;
  json["libtorch_version"] = manifest.libtorch_version;
  json["saved_at"] = manifest.saved_at;
  json["state"] = manifest.state;
  auto& files = json["files"] = nlohmann::ordered_json::array();
  for (const ManifestFile& file : manifest.files) {
    nlohmann::ordered_json entry = {
        {"name", file.name}, {"bytes", file.bytes}, {"sha256", to_hex(file.sha256)}};
    if (file.rank >= 0) entry["rank"] = file.rank;
    files.push_back(std::move(entry));
  }
  std::string text;
  try {
    text = json.dump(2);
  } catch (const nlohmann::json::type_error&) {
    throw JsonProblem{"", "contains a string that is not UTF-8"};
  }
  text.resize(text.size() - 2);  // "\n}"
  return with_checksum(std::move(text));
}

}  // namespace

std::string with_checksum(std::string body) {
  body += ",\n";
  const Bytes32 sum = Digest().update(body).finish();
  return fmt::format("{}  \"checksum\": \"{}\"\n}}\n", body, to_hex(sum));
}

std::string format(const Manifest& manifest) {
  try {
    check_rules(manifest);
    check_value(manifest.state, "state", 1);
    for (const ManifestFile& file : manifest.files) {
      if (file.bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
        throw JsonProblem{"files", fmt::format("{} has more than 2^63 - 1 bytes", file.name)};
    }
    std::string text = to_text(manifest);
    if (text.size() > kMaxManifestBytes)
      throw JsonProblem{"state",
                        fmt::format("makes a manifest of {} bytes, more than the maximum of {}",
                                    text.size(), kMaxManifestBytes)};
    return text;
  } catch (const JsonProblem& problem) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the checkpoint's manifest cannot be written: {}{}{}", problem.key,
                            problem.key.empty() ? "" : " ", problem.rule),
                {.subject = problem.key, .hint = {}});
  }
}

std::string now_utc() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", utc.tm_year + 1900, utc.tm_mon + 1,
                     utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec);
}

}  // namespace coupler::checkpoint
