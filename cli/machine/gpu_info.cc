#include "cli/machine/gpu_info.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <sstream>
#include <system_error>

#include "cli/machine/small_files.h"

namespace coupler::cli {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code failed;
  for (fs::directory_iterator entry(folder, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    entries.push_back(entry->path());
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

// "580.65.06" from "NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build".
std::string version_word(const std::string& line) {
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    const bool digits = std::all_of(
        word.begin(), word.end(), [](unsigned char c) { return std::isdigit(c) != 0 || c == '.'; });
    if (digits && word.find('.') != std::string::npos) return word;
  }
  return "";
}

}  // namespace

GpuInfo gpu_info(const std::string& root) {
  GpuInfo gpu;
  const std::string driver = root + "/proc/driver/nvidia";
  if (const auto line = value_in(driver + "/version", "NVRM version")) {
    gpu.driver = version_word(*line);
    if (gpu.driver.empty()) gpu.driver = *line;
  }
  for (const fs::path& folder : entries_of(driver + "/gpus")) {
    gpu.gpus.push_back(
        value_in((folder / "information").string(), "Model").value_or("unknown model"));
  }
  for (const fs::path& device : entries_of(root + "/sys/bus/pci/devices")) {
    // 0x03: display controllers, including 3D controllers without a display.
    const bool display =
        first_line_of((device / "class").string()).value_or("").rfind("0x03", 0) == 0;
    if (display && first_line_of((device / "vendor").string()) == "0x10de") ++gpu.cards;
  }
  return gpu;
}

std::string describe_driver(const GpuInfo& gpu) { return gpu.driver.empty() ? "none" : gpu.driver; }

std::string describe_gpus(const GpuInfo& gpu) {
  std::map<std::string, int> counts;
  for (const std::string& name : gpu.gpus) ++counts[name];
  std::string text;
  for (const auto& [name, count] : counts) {
    text += fmt::format("{}{} x {}", text.empty() ? "" : ", ", count, name);
  }
  if (text.empty() && gpu.cards > 0) return fmt::format("{} NVIDIA, no driver loaded", gpu.cards);
  return text.empty() ? "none" : text;
}

}  // namespace coupler::cli
