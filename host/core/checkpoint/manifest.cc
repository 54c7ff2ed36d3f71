#include "checkpoint/manifest.h"

#include <coupler/error.h>
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <ctime>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>

#include "base/json.h"
#include "base/text.h"
#include "checkpoint/folder.h"
#include "checkpoint/names.h"

namespace coupler::checkpoint {

namespace {

constexpr size_t kMaxName = 255;  // bytes, the limit of file systems

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// YYYY-MM-DDTHH:MM:SSZ; only the form is checked.
bool is_time(std::string_view text) {
  constexpr std::string_view kShape = "0000-00-00T00:00:00Z";
  if (text.size() != kShape.size()) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (kShape[i] == '0' ? !is_digit(text[i]) : text[i] != kShape[i]) return false;
  }
  return true;
}

}  // namespace

std::string check_file_name(std::string_view name) {
  if (name.empty()) return "is empty";
  if (name.size() > kMaxName) return fmt::format("is longer than {} bytes", kMaxName);
  if (name.front() == '.') return "begins with '.'";
  if (name == kManifestName) return "is the manifest's own name";
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) return "contains a control character";
    if (c == '/' || c == '\\') return "contains a path separator";
  }
  return "";
}

namespace {

// The rules for every manifest, read or to be written. Throws JsonProblem naming the key.
void check_rules(const Manifest& manifest) {
  if (manifest.number < 0) throw JsonProblem{"number", "must be at least 0"};
  if (manifest.steps < 0) throw JsonProblem{"steps", "must be at least 0"};
  if (!manifest.save.empty() && !is_save_identity(manifest.save))
    throw JsonProblem{"save", fmt::format("must be 32 lower-case hexadecimal digits, not '{}'",
                                          for_message(manifest.save))};
  if (manifest.world_size < 1) throw JsonProblem{"world", "must be at least 1"};
  if (!is_time(manifest.saved_at))
    throw JsonProblem{"saved_at", fmt::format("must be a time such as 2026-01-31T09:30:00Z, not "
                                              "'{}'",
                                              for_message(manifest.saved_at))};
  if (!manifest.state.is_object()) throw JsonProblem{"state", "must be an object"};
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  std::unordered_set<std::string_view> names;
  uint64_t total = 0;
  for (size_t i = 0; i < manifest.files.size(); ++i) {
    const ManifestFile& file = manifest.files[i];
    const std::string key = fmt::format("files[{}]", i);
    if (const std::string rule = check_file_name(file.name); !rule.empty())
      throw JsonProblem{key + ".name", fmt::format("'{}' {}", for_message(file.name), rule)};
    if (!names.insert(file.name).second)
      throw JsonProblem{key + ".name", fmt::format("'{}' is given twice", for_message(file.name))};
    if (file.rank >= manifest.world_size)
      throw JsonProblem{key + ".rank", fmt::format("must be below the world size {}, not {}",
                                                   manifest.world_size, file.rank)};
    if (file.rank >= 0 && manifest.save.empty())
      throw JsonProblem{key + ".rank", "requires the identity of the save"};
    if (file.bytes > kMost - total)
      throw JsonProblem{key + ".bytes", "brings the total to more than 2^63 - 1 bytes"};
    total += file.bytes;
  }
}

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
      check_value(item, fmt::format("{}.{}", key, for_message(name)), nesting + 1);
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
  json["world"] = manifest.world_size;
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

std::string now_utc() { return fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr))); }

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
        throw JsonProblem{prefix_ + for_message(name), "is not a key of the format"};
    }
  }

 private:
  [[noreturn]] void refuse(const char* name, const std::string& rule, const Json& value) const {
    const std::string is = value.is_structured() || value.is_binary()
                               ? std::string(value.type_name())
                               : value.dump(-1, ' ', false, Json::error_handler_t::replace);
    throw JsonProblem{prefix_ + name, fmt::format("{}, not {}", rule, for_message(is))};
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
    throw JsonProblem{"format", fmt::format("is '{}', not {}", for_message(format), kMajorFormat)};
  if (version->major == kMajor) return *version;
  const Json& writer = fields.at("coupler_version");
  throw JsonProblem{
      "format",
      fmt::format("is {}, written by Coupler {}; this Coupler reads {}", for_message(format),
                  writer.is_string() ? for_message(writer.get<std::string>()) : "?", kMajorFormat)};
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
  manifest.world_size = static_cast<int>(fields.count("world", std::numeric_limits<int>::max()));
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

std::string encode_sums(const std::vector<uint64_t>& sums) {
  std::string text;
  for (const uint64_t sum : sums) text += fmt::format("{:016x}", sum);
  return text;
}

std::vector<uint64_t> sums_of(const Manifest& manifest, const std::string& name,
                              const std::string& path) {
  const auto all = manifest.state.find("sums");
  if (all == manifest.state.end() || !all->is_object() || !all->contains(name) ||
      !(*all)[name].is_string()) {
    refuse_checkpoint(path, "the manifest has no checksums of it");
  }
  const auto& text = (*all)[name].get_ref<const std::string&>();
  constexpr size_t kDigits = 16;
  if (text.size() % kDigits != 0)
    refuse_checkpoint(path, "its checksums in the manifest are truncated");
  std::vector<uint64_t> sums(text.size() / kDigits);
  for (size_t i = 0; i < sums.size(); ++i) {
    const char* const begin = text.data() + i * kDigits;
    const auto [end, error] = std::from_chars(begin, begin + kDigits, sums[i], 16);
    if (error != std::errc() || end != begin + kDigits) {
      refuse_checkpoint(path, "its checksums in the manifest are not hexadecimal numbers");
    }
  }
  return sums;
}

std::string piece_problem(const safetensors::Metadata& metadata, const Manifest& manifest,
                          const ManifestFile& file) {
  if (file.rank < 0) return "";
  const auto found = metadata.find(kSaveKey);
  if (found == metadata.end())
    return fmt::format("carries no save identity, but rank {} wrote it for save {}", file.rank,
                       manifest.save);
  if (found->second == manifest.save) return "";
  return fmt::format("belongs to save {}, not to save {} for which rank {} wrote it",
                     for_message(found->second), manifest.save, file.rank);
}

}  // namespace coupler::checkpoint
