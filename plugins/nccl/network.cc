#include "nccl/network.h"

#include <arpa/inet.h>
#include <ifaddrs.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

namespace db::nccl {
namespace {

// The name of the interface with this address, or the string itself, which then is a name.
std::string interface_of(const std::string& text) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return text;
  std::string name = text;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    const int family = one->ifa_addr->sa_family;
    const void* address = nullptr;
    if (family == AF_INET) address = &reinterpret_cast<sockaddr_in*>(one->ifa_addr)->sin_addr;
    if (family == AF_INET6) address = &reinterpret_cast<sockaddr_in6*>(one->ifa_addr)->sin6_addr;
    std::array<char, INET6_ADDRSTRLEN> shown{};
    if (address == nullptr || inet_ntop(family, address, shown.data(), shown.size()) == nullptr)
      continue;
    if (text == shown.data()) name = one->ifa_name;
  }
  freeifaddrs(all);
  return name;
}

}  // namespace

void choose_interface(const db_communicator_params& params) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const bool alone = params.local_size == params.size;
  if (params.interface_name == nullptr && !alone) return;
  // "=": exactly this name, not a prefix.
  const std::string name =
      "=" + (params.interface_name != nullptr ? interface_of(params.interface_name) : "lo");
  setenv("NCCL_SOCKET_IFNAME", name.c_str(), 0);
}

}  // namespace db::nccl
