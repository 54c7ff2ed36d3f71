#include "extra_memory.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <stdexcept>
#include <string>

namespace coupler::bench {
namespace {

long status_kib(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(name + ":", 0) == 0) return std::stol(line.substr(name.size() + 1));
  }
  throw std::runtime_error("/proc/self/status has no " + name);
}

}  // namespace

ExtraMemory::ExtraMemory(bool anonymous)
    : anonymous_(anonymous), before_(status_kib(anonymous ? "RssAnon" : "VmRSS")) {
  highest_ = before_;
  if (!anonymous) {
    std::ofstream("/proc/self/clear_refs") << 5;  // resets VmHWM to the current VmRSS
    return;
  }
  watcher_ = std::thread([this] {
    while (!over_) {
      highest_ = std::max(highest_.load(), status_kib("RssAnon"));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
}

void ExtraMemory::stop() {
  over_ = true;
  if (watcher_.joinable()) watcher_.join();
}

double ExtraMemory::mib() {
  stop();
  const long high = anonymous_ ? highest_.load() : status_kib("VmHWM");
  return static_cast<double>(high - before_) / 1024;
}

}  // namespace coupler::bench
