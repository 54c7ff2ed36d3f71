#include "checkpoint/piece_name.h"

#include <fmt/format.h>

#include <charconv>
#include <system_error>

namespace coupler::checkpoint {

std::string numbered(const std::string& kind, size_t index) {
  return index == 0 ? kind : kind + "_" + std::to_string(index);
}

std::vector<std::string> files_of(const Manifest& manifest, const std::string& base) {
  std::vector<std::string> names;
  for (const ManifestFile& file : manifest.files) {
    if (!manifest.save.empty() && file.rank < 0) continue;
    if (file.name == base + kExtension ||
        (file.name.rfind(base + "-", 0) == 0 && file.name.ends_with(kExtension))) {
      names.push_back(file.name);
    }
  }
  return names;
}

std::string part_name(const std::string& tensor, int64_t begin, int64_t end) {
  return fmt::format("{}[{}:{}]", tensor, begin, end);
}

EntryRange read_entry_name(const std::string& entry) {
  EntryRange whole{entry};
  const size_t open = entry.rfind('[');
  if (entry.empty() || entry.back() != ']' || open == std::string::npos) return whole;
  EntryRange result{entry.substr(0, open)};
  const char* const last = entry.data() + entry.size() - 1;
  const auto begin = std::from_chars(entry.data() + open + 1, last, result.begin);
  if (begin.ec != std::errc() || begin.ptr == last || *begin.ptr != ':') return whole;
  const auto end = std::from_chars(begin.ptr + 1, last, result.end);
  const bool valid =
      end.ec == std::errc() && end.ptr == last && result.begin >= 0 && result.end > result.begin;
  return valid ? result : whole;
}

}  // namespace coupler::checkpoint
