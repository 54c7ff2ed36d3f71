#include "cli/machine/text_values.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <system_error>

#include "base/text.h"

namespace coupler::cli {

std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder,
                                              std::string_view prefix) {
  std::vector<std::filesystem::path> entries;
  std::error_code failed;
  for (std::filesystem::directory_iterator entry(folder, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    if (entry->path().filename().string().starts_with(prefix)) entries.push_back(entry->path());
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

std::optional<std::string> first_line_of(const std::string& file) {
  std::ifstream lines(file);
  std::string line;
  if (!std::getline(lines, line)) return std::nullopt;
  return line;
}

std::optional<uint64_t> number_in(const std::string& file) {
  const auto line = first_line_of(file);
  return line ? to_number<uint64_t>(*line) : std::nullopt;
}

std::optional<std::string> value_in(const std::string& file, std::string_view start) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(start)) continue;
    std::string value = line.substr(start.size());
    value.erase(0, value.find_first_not_of(" \t:=\"'"));
    value.erase(value.find_last_not_of(" \t\"'") + 1);
    return value;
  }
  return std::nullopt;
}

std::string version_in(const std::string& header, const std::array<const char*, 3>& names) {
  std::string version;
  for (const char* name : names) {
    const auto number = value_in(header, std::string("#define ") + name);
    if (!number) return "";
    version += (version.empty() ? "" : ".") + *number;
  }
  return version;
}

std::optional<uint64_t> meminfo(const char* name) {
  const auto kibibytes = value_in("/proc/meminfo", name);
  if (!kibibytes) return std::nullopt;
  return std::strtoull(kibibytes->c_str(), nullptr, 10) * 1024;
}

}  // namespace coupler::cli
