#include "cli/machine/text_values.h"

#include <charconv>
#include <cstdlib>
#include <fstream>

namespace coupler::cli {

std::optional<std::string> first_line_of(const std::string& file) {
  std::ifstream lines(file);
  std::string line;
  if (!std::getline(lines, line)) return std::nullopt;
  return line;
}

std::optional<uint64_t> number_in(const std::string& file) {
  const auto line = first_line_of(file);
  uint64_t number = 0;
  if (!line || line->empty()) return std::nullopt;
  const char* const end = line->data() + line->size();
  const auto result = std::from_chars(line->data(), end, number);
  if (result.ec != std::errc() || result.ptr != end) return std::nullopt;
  return number;
}

std::optional<std::string> value_in(const std::string& file, std::string_view start) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    if (line.compare(0, start.size(), start) != 0) continue;
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
