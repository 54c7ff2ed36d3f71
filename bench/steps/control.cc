#include "control.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <sstream>
#include <stdexcept>

namespace coupler::bench {
namespace {

constexpr int kLongestPauseMs = 15 * 60 * 1000;  // while the counterparts have their turns

std::runtime_error failure(const std::string& what) {
  return std::runtime_error("control socket: " + what + ": " + std::strerror(errno));
}

double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

}  // namespace

Control::Control(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    throw std::runtime_error("control socket: the path is too long: " + path);
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd_ < 0) throw failure("socket");
  if (connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    const auto error = failure("cannot connect to " + path);
    close(fd_);
    throw error;
  }
}

Control::~Control() { close(fd_); }

bool Control::read_line(std::string& line) {
  for (;;) {
    if (const size_t end = received_.find('\n'); end != std::string::npos) {
      line = received_.substr(0, end);
      received_.erase(0, end + 1);
      return true;
    }
    pollfd waited{.fd = fd_, .events = POLLIN, .revents = 0};
    const int ready = poll(&waited, 1, kLongestPauseMs);
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0) throw failure("poll");
    if (ready == 0) throw std::runtime_error("control socket: the driver was silent for too long");
    char buffer[256];
    const ssize_t count = recv(fd_, buffer, sizeof buffer, 0);
    if (count < 0) throw failure("recv");
    if (count == 0) return false;
    received_.append(buffer, static_cast<size_t>(count));
  }
}

void Control::write_line(const std::string& line) const {
  const std::string text = line + "\n";
  if (send(fd_, text.data(), text.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(text.size())) {
    throw failure("send");
  }
}

void Control::serve(int rank, int64_t parameters, const Turn& turn) {
  write_line("ready " + std::to_string(rank) + " " + std::to_string(parameters));
  for (std::string line; read_line(line) && line != "quit";) {
    std::istringstream words(line);
    std::string go, mode;
    int64_t steps = 0;
    if (!(words >> go >> mode >> steps) || go != "go" || steps < 1) {
      throw std::runtime_error("control socket: unexpected line from the driver: '" + line + "'");
    }
    const double cpu_before = cpu_seconds();
    turn.ready();
    const auto start = std::chrono::steady_clock::now();
    turn.train(mode, steps);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const double loss = turn.loss();
    char answer[160];
    std::snprintf(answer, sizeof answer, "done %.9f %.6f %.6f %.9g", seconds, cpu_before,
                  cpu_seconds(), loss);
    write_line(answer);
  }
}

}  // namespace coupler::bench
