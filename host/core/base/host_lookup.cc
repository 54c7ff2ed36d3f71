#include "base/host_lookup.h"

#include <sys/socket.h>

#include <cstdlib>
#include <thread>

namespace coupler {
namespace {

constexpr auto kPause = std::chrono::milliseconds(500);

}  // namespace

HostAddresses look_up_host(const std::string& host, int port, Deadline deadline) {
  const bool may_appear = std::getenv("KUBERNETES_SERVICE_HOST") != nullptr;
  const auto service = std::to_string(port);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  while (true) {
    addrinfo* found = nullptr;
    const int status = ::getaddrinfo(host.c_str(), service.c_str(), &hints, &found);
    if (status == 0) {
      return {{found, ::freeaddrinfo}, ""};
    }
    if (!may_appear || std::chrono::steady_clock::now() + kPause >= deadline) {
      return {{nullptr, ::freeaddrinfo}, ::gai_strerror(status)};
    }
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace coupler
