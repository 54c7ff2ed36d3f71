#include "checkpoint/manifest_rules.h"

#include <fmt/format.h>

#include <limits>
#include <unordered_set>
#include <utility>

#include "base/file_text.h"
#include "base/strict_json.h"
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

void check_rules(const Manifest& manifest) {
  if (manifest.number < 0) throw JsonProblem{"number", "must be at least 0"};
  if (manifest.steps < 0) throw JsonProblem{"steps", "must be at least 0"};
  if (!manifest.save.empty() && !is_save_identity(manifest.save))
    throw JsonProblem{"save", fmt::format("must be 32 lower-case hexadecimal digits, not '{}'",
                                          shown(manifest.save))};
  if (manifest.world < 1) throw JsonProblem{"world", "must be at least 1"};
  if (!is_time(manifest.saved_at))
    throw JsonProblem{"saved_at", fmt::format("must be a time such as 2026-01-31T09:30:00Z, not "
                                              "'{}'",
                                              shown(manifest.saved_at))};
  if (!manifest.state.is_object()) throw JsonProblem{"state", "must be an object"};
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  std::unordered_set<std::string_view> names;
  uint64_t total = 0;
  for (size_t i = 0; i < manifest.files.size(); ++i) {
    const ManifestFile& file = manifest.files[i];
    const std::string key = fmt::format("files[{}]", i);
    if (const std::string rule = check_file_name(file.name); !rule.empty())
      throw JsonProblem{key + ".name", fmt::format("'{}' {}", shown(file.name), rule)};
    if (!names.insert(file.name).second)
      throw JsonProblem{key + ".name", fmt::format("'{}' is given twice", shown(file.name))};
    if (file.rank >= manifest.world)
      throw JsonProblem{key + ".rank", fmt::format("must be below the world size {}, not {}",
                                                   manifest.world, file.rank)};
    if (file.rank >= 0 && manifest.save.empty())
      throw JsonProblem{key + ".rank", "requires the identity of the save"};
    if (file.bytes > kMost - total)
      throw JsonProblem{key + ".bytes", "brings the total to more than 2^63 - 1 bytes"};
    total += file.bytes;
  }
}

}  // namespace coupler::checkpoint
