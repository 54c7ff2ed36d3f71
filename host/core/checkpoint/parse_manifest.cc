// parse() of manifest.h: reads a Manifest and checks every key.
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "base/file_text.h"
#include "base/strict_json.h"
#include "checkpoint/manifest.h"
#include "checkpoint/manifest_rules.h"

namespace coupler::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kFamily = "coupler.checkpoint/";
constexpr int kMajor = 1;
constexpr int kMinor = 1;
constexpr const char* kMajorFormat = "coupler.checkpoint/1";  // all its minor versions can be read

struct Version {
  int major = 0;
  int minor = 0;
};

// "coupler.checkpoint/2" or "coupler.checkpoint/2.1".
std::optional<Version> read_version(std::string_view format) {
  if (!format.starts_with(kFamily)) return std::nullopt;
  format.remove_prefix(kFamily.size());
  const char* end = format.data() + format.size();
  Version version;
  auto [stop, status] = std::from_chars(format.data(), end, version.major);
  if (status != std::errc() || version.major < 1) return std::nullopt;
  if (stop == end) return version;
  if (*stop != '.') return std::nullopt;
  const auto minor = std::from_chars(stop + 1, end, version.minor);
  if (minor.ec != std::errc() || minor.ptr != end || version.minor < 0) return std::nullopt;
  return version;
}

// The value of a key, by type; each function throws JsonProblem naming the key.
class Fields {
 public:
  Fields(const Json& object, std::string prefix) : object_(object), prefix_(std::move(prefix)) {}

  const Json& at(const char* name) const {
    const auto found = object_.find(name);
    if (found == object_.end()) throw JsonProblem{prefix_ + name, "is missing"};
    return *found;
  }
  std::string text(const char* name) const {
    const Json& value = at(name);
    if (!value.is_string()) refuse(name, "must be a string", value);
    return value.get<std::string>();
  }
  uint64_t count(const char* name, int64_t most = std::numeric_limits<int64_t>::max()) const {
    const Json& value = at(name);
    if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(most))
      refuse(name, fmt::format("must be a whole number from 0 to {}", most), value);
    return value.get<uint64_t>();
  }
  Bytes32 hash(const char* name) const {
    const std::string digits = text(name);
    Bytes32 bytes{};
    if (!from_hex(digits, bytes))
      refuse(name, "must be 64 lower-case hexadecimal digits", at(name));
    return bytes;
  }
  bool has(const char* name) const { return object_.contains(name); }
  void refuse_others(std::initializer_list<std::string_view> known) const {
    for (const auto& [name, value] : object_.items()) {
      if (std::find(known.begin(), known.end(), name) == known.end())
        throw JsonProblem{prefix_ + shown(name), "is not a key of the format"};
    }
  }

 private:
  [[noreturn]] void refuse(const char* name, const std::string& rule, const Json& value) const {
    const std::string is = value.is_structured() || value.is_binary()
                               ? std::string(value.type_name())
                               : value.dump(-1, ' ', false, Json::error_handler_t::replace);
    throw JsonProblem{prefix_ + name, fmt::format("{}, not {}", rule, shown(is))};
  }

  const Json& object_;
  std::string prefix_;
};

// Checks the last line against everything above it; every byte belongs to one of the two.
void check_checksum(std::string_view text) {
  constexpr std::string_view kStart = "  \"checksum\": \"";
  constexpr std::string_view kEnd = "\"\n}\n";
  constexpr size_t kDigits = 64;
  constexpr size_t kTail = kStart.size() + kDigits + kEnd.size();
  const std::string_view tail = text.size() < kTail ? "" : text.substr(text.size() - kTail);
  if (!tail.starts_with(kStart) || !tail.ends_with(kEnd))
    throw JsonProblem{"checksum", "is not in a last line of its own"};
  const std::string sum = to_hex(Digest().update(text.substr(0, text.size() - kTail)).finish());
  if (tail.substr(kStart.size(), kDigits) != sum)
    throw JsonProblem{"checksum", "does not match the contents: the file was changed or damaged"};
}

Version check_version(const Fields& fields) {
  const std::string format = fields.text("format");
  const auto version = read_version(format);
  if (!version)
    throw JsonProblem{"format", fmt::format("is '{}', not {}", shown(format), kMajorFormat)};
  if (version->major == kMajor) return *version;
  const Json& writer = fields.at("coupler_version");
  throw JsonProblem{
      "format",
      fmt::format("is {}, written by Coupler {}; this Coupler reads {}", shown(format),
                  writer.is_string() ? shown(writer.get<std::string>()) : "?", kMajorFormat)};
}

Manifest read(std::string_view text) {
  if (text.size() > kMaxManifestBytes)
    throw JsonProblem{"", fmt::format("has {} bytes, more than the maximum of {}", text.size(),
                                      kMaxManifestBytes)};
  Json json = parse_strict_json(text, kMaxNesting);
  if (!json.is_object()) throw JsonProblem{"", "is not a JSON object"};
  const Fields fields(json, "");
  const Version version = check_version(fields);
  check_checksum(text);
  // A later minor version may have keys that this version does not know.
  const bool has_save = version.minor >= 1;
  if (version.minor <= kMinor)
    fields.refuse_others({"format", "number", has_save ? "save" : "number", "steps", "world",
                          "backend", "plan", "coupler_version", "libtorch_version", "saved_at",
                          "state", "files", "checksum"});
  Manifest manifest;
  if (has_save) {
    manifest.save = fields.text("save");
    if (manifest.save.empty()) throw JsonProblem{"save", "is empty"};
  }
  manifest.number = static_cast<int64_t>(fields.count("number"));
  manifest.steps = static_cast<int64_t>(fields.count("steps"));
  manifest.world = static_cast<int>(fields.count("world", std::numeric_limits<int>::max()));
  manifest.backend = fields.text("backend");
  manifest.plan = fields.text("plan");
  manifest.coupler_version = fields.text("coupler_version");
  manifest.libtorch_version = fields.text("libtorch_version");
  manifest.saved_at = fields.text("saved_at");
  const Json& files = fields.at("files");
  if (!files.is_array()) throw JsonProblem{"files", "must be an array"};
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string key = fmt::format("files[{}]", i);
    if (!files[i].is_object()) throw JsonProblem{key, "must be an object"};
    const Fields file(files[i], key + ".");
    if (version.minor <= kMinor)
      file.refuse_others({"name", "bytes", "sha256", has_save ? "rank" : "name"});
    manifest.files.push_back({file.text("name"), file.count("bytes"), file.hash("sha256")});
    if (has_save && file.has("rank"))
      manifest.files.back().rank =
          static_cast<int>(file.count("rank", std::numeric_limits<int>::max()));
  }
  fields.at("state");
  manifest.state = std::move(json["state"]);
  check_rules(manifest);
  return manifest;
}

}  // namespace

Manifest parse(std::string_view text, const std::string& file) {
  try {
    return read(text);
  } catch (const JsonProblem& problem) {
    const std::string key = problem.key.empty() ? "" : fmt::format("'{}' ", problem.key);
    const bool other_version = problem.key == "format";
    throw Error(
        ErrorCode::kIo, fmt::format("{}: {}{}", file, key, problem.rule),
        {.subject = file,
         .hint = other_version
                     ? "read it with the version of Coupler that wrote it, or a later one"
                     : "use another checkpoint; 'coupler checkpoint list' shows which are valid"});
  }
}

}  // namespace coupler::checkpoint
