// Crowd: processes of the same user that connect to this process's ranks while these connect to
// each other, and hold their connections or talk nonsense. Ranks are threads of this process.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace backend_test {

// Paths of the Unix sockets at which this process's ranks of a backend listen.
inline std::set<std::string> listening_paths(const std::string& backend) {
  std::set<std::string> paths;
  std::error_code gone;  // descriptors may disappear meanwhile
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", gone)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.find("/coupler-" + backend + "-") != std::string::npos)
      paths.insert(entry.path().string());
  }
  return paths;
}

class Crowd {
 public:
  // Leaves alone what listens already.
  explicit Crowd(const std::string& backend)
      : backend_(backend), others_(listening_paths(backend)), thread_([this] { run(); }) {}
  ~Crowd() { end(); }
  Crowd(const Crowd&) = delete;
  Crowd& operator=(const Crowd&) = delete;

  void end() {
    over_ = true;
    if (thread_.joinable()) thread_.join();
  }
  int64_t connected() const { return connected_; }

 private:
  static int connect_to(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return fd;
    close(fd);
    return -1;
  }

  void run() {
    std::vector<int> held;
    const std::string nonsense(4096, 'x');
    while (!over_) {
      for (const std::string& path : listening_paths(backend_)) {
        if (others_.count(path) > 0) continue;
        for (int i = 0; i < 64 && !over_; ++i) {
          const int fd = connect_to(path);
          if (fd < 0) break;
          ++connected_;
          if (i % 2 == 0) (void)!send(fd, nonsense.data(), nonsense.size(), MSG_NOSIGNAL);
          held.push_back(fd);
        }
      }
      while (held.size() > 600) {
        close(held.front());
        held.erase(held.begin());
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    for (const int fd : held) close(fd);
  }

  const std::string backend_;
  const std::set<std::string> others_;
  std::atomic<bool> over_{false};
  std::atomic<int64_t> connected_{0};
  std::thread thread_;
};

}  // namespace backend_test
