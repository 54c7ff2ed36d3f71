#include "proc_net.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <sstream>
#include <string>
#include <system_error>

namespace backend_test {
namespace {

constexpr int kFirstFile = 3, kLastFile = 12;    // other processes' descriptors to try
constexpr unsigned kListen = 0x0a;               // TCP_LISTEN, in the column st
constexpr unsigned kUnixListening = 0x00010000;  // __SO_ACCEPTCON, in the column Flags

// "0100007F:1F90", or with four words for IPv6.
Endpoint tcp_endpoint(const char* words, unsigned port) {
  Endpoint endpoint;
  if (std::strlen(words) == 8) {
    auto* const v4 = reinterpret_cast<sockaddr_in*>(&endpoint.address);
    v4->sin_family = AF_INET;
    v4->sin_port = htons(static_cast<uint16_t>(port));
    std::sscanf(words, "%8x", &v4->sin_addr.s_addr);
    endpoint.size = sizeof *v4;
    return endpoint;
  }
  auto* const v6 = reinterpret_cast<sockaddr_in6*>(&endpoint.address);
  v6->sin6_family = AF_INET6;
  v6->sin6_port = htons(static_cast<uint16_t>(port));
  unsigned* const word = v6->sin6_addr.s6_addr32;
  std::sscanf(words, "%8x%8x%8x%8x", word, word + 1, word + 2, word + 3);
  endpoint.size = sizeof *v6;
  return endpoint;
}

}  // namespace

Endpoint Endpoint::unix_name(const std::string& name) {
  Endpoint endpoint;
  auto* const local = reinterpret_cast<sockaddr_un*>(&endpoint.address);
  local->sun_family = AF_UNIX;
  const size_t length = std::min(name.size(), sizeof local->sun_path - 1);
  std::memcpy(local->sun_path + 1, name.data(), length);
  endpoint.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  return endpoint;
}

Endpoint Endpoint::unix_path(const std::string& path) {
  Endpoint endpoint;
  auto* const local = reinterpret_cast<sockaddr_un*>(&endpoint.address);
  local->sun_family = AF_UNIX;
  path.copy(local->sun_path, sizeof local->sun_path - 1);
  endpoint.size = sizeof *local;
  return endpoint;
}

ProcNet::ProcNet() {
  const std::string parent = std::to_string(getppid());
  const std::array<std::string, 4> names = {"/proc/net/tcp", "/proc/net/tcp6", "/proc/net/unix",
                                            "/proc/" + parent + "/task/" + parent + "/children"};
  for (size_t i = 0; i < names.size(); ++i) {
    files_[i] = open(names[i].c_str(), O_RDONLY | O_CLOEXEC);
    // A kernel may lack IPv6, or the list of children.
    if (files_[i] < 0 && i % 2 == 0) {
      throw std::system_error(errno, std::generic_category(), names[i]);
    }
  }
}

ProcNet::~ProcNet() {
  for (const int file : files_) {
    if (file >= 0) close(file);
  }
}

std::string ProcNet::read(size_t index) {
  std::string text;
  std::array<char, 16384> part;
  if (files_[index] < 0) return text;
  lseek(files_[index], 0, SEEK_SET);
  for (ssize_t size; (size = ::read(files_[index], part.data(), part.size())) > 0;) {
    text.append(part.data(), static_cast<size_t>(size));
  }
  return text;
}

std::vector<Endpoint> ProcNet::look(uid_t but_for) {
  std::vector<Endpoint> listening;
  for (size_t i = 0; i < 2; ++i) {
    std::istringstream lines(read(i));
    for (std::string line; std::getline(lines, line);) {
      char words[33];
      unsigned port = 0, state = 0, user = 0;
      if (std::sscanf(line.c_str(), " %*d: %32[0-9A-F]:%x %*s %x %*s %*s %*s %u", words, &port,
                      &state, &user) == 4 &&
          state == kListen && user != but_for) {
        listening.push_back(tcp_endpoint(words, port));
      }
    }
  }
  std::istringstream lines(read(2));
  for (std::string line; std::getline(lines, line);) {
    unsigned flags = 0;
    int name = 0;
    if (std::sscanf(line.c_str(), "%*s %*x %*x %x %*x %*x %*u %n", &flags, &name) != 1 ||
        name == 0 || (flags & kUnixListening) == 0) {
      continue;
    }
    const std::string address = line.substr(static_cast<size_t>(name));
    if (address.starts_with('@')) listening.push_back(Endpoint::unix_name(address.substr(1)));
    if (address.starts_with('/')) listening.push_back(Endpoint::unix_path(address));
  }
  std::istringstream processes(read(3));
  for (pid_t process; processes >> process;) {
    if (process == getpid()) continue;
    for (int file = kFirstFile; file <= kLastFile; ++file) {
      listening.push_back(
          Endpoint::unix_path("/proc/" + std::to_string(process) + "/fd/" + std::to_string(file)));
    }
  }
  return listening;
}

}  // namespace backend_test
