// MemoryLimit: a control group with a memory limit, if the test may create one. Processes enter it
// by writing to its file. Removed with the object, which must outlive them.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

namespace coupler {

class MemoryLimit {
 public:
  explicit MemoryLimit(uint64_t bytes) {
    for (const auto& [root, file] : {std::pair{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"},
                                     std::pair{"/sys/fs/cgroup", "memory.max"}}) {
      const std::filesystem::path path =
          std::filesystem::path(root) / ("coupler-test-" + std::to_string(::getpid()));
      std::error_code failed;
      if (!std::filesystem::create_directory(path, failed) || failed) continue;
      std::ofstream limit(path / file);
      limit << bytes << std::flush;
      if (limit.good()) {
        path_ = path;
        return;
      }
      std::filesystem::remove(path, failed);
    }
  }
  ~MemoryLimit() {
    if (path_.empty()) return;
    // Retries until the kernel has removed the last process.
    for (int i = 0; i < 100 && ::rmdir(path_.c_str()) != 0; ++i) ::usleep(20'000);
  }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

  bool works() const { return !path_.empty(); }
  void enter_this_process() const { std::ofstream(path_ / "cgroup.procs") << ::getpid(); }
  std::string enter() const { return "echo $$ > " + (path_ / "cgroup.procs").string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace coupler
