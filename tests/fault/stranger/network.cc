#include "network.h"

#include <fcntl.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <system_error>
#include <thread>

namespace backend_test {
namespace {

std::system_error system_failure(const std::string& what) {
  return {errno, std::generic_category(), what};
}

class ControlSocket {
 public:
  ControlSocket() : fd_(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    if (fd_ < 0) throw system_failure("socket");
  }
  ~ControlSocket() { close(fd_); }
  ControlSocket(const ControlSocket&) = delete;
  ControlSocket& operator=(const ControlSocket&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

ifreq request_for(const std::string& interface_name) {
  ifreq request{};
  interface_name.copy(request.ifr_name, sizeof request.ifr_name - 1);
  return request;
}

void bring_up(const std::string& interface_name) {
  const ControlSocket control;
  ifreq request = request_for(interface_name);
  if (ioctl(control.get(), SIOCGIFFLAGS, &request) != 0) throw system_failure(interface_name);
  request.ifr_flags = static_cast<short>(request.ifr_flags | IFF_UP);
  if (ioctl(control.get(), SIOCSIFFLAGS, &request) != 0) throw system_failure(interface_name);
}

void set_feature(const std::string& interface_name, uint32_t command) {
  const ControlSocket control;
  ifreq request = request_for(interface_name);
  ethtool_value value{command, 0};
  request.ifr_data = reinterpret_cast<char*>(&value);
  if (ioctl(control.get(), SIOCETHTOOL, &request) != 0) {
    throw system_failure(interface_name + ": ethtool " + std::to_string(command));
  }
}

void run_command(const std::string& command) {
  FILE* const pipe = popen((command + " 2>&1").c_str(), "re");
  if (pipe == nullptr) throw system_failure(command);
  std::string output;
  char buffer[512];
  for (size_t size = 0; (size = fread(buffer, 1, sizeof buffer, pipe)) > 0;) {
    output.append(buffer, size);
  }
  if (pclose(pipe) != 0) throw std::runtime_error(command + ": " + output);
}

// The next namespace that this thread creates gets its own small connection table instead of
// sharing a large one, so that reading /proc/net/tcp takes microseconds. Needs Linux 6.1.
void ask_for_small_tables() {
  std::ofstream("/proc/sys/net/ipv4/tcp_child_ehash_entries") << "1024";
}

void on_new_thread(const std::function<void()>& body) {
  std::exception_ptr problem;
  std::thread([&] {
    try {
      body();
    } catch (...) {
      problem = std::current_exception();
    }
  }).join();
  if (problem) std::rethrow_exception(problem);
}

}  // namespace

std::string Network::why_not() {
  if (geteuid() != 0) return "network namespaces need root";
  try {
    const Network first, second;
    join({first, "wire", "10.77.0.1/24"}, {second, "wire", "10.77.0.2/24"});
  } catch (const std::exception& error) {
    return std::string("network namespaces with a wire cannot be created here: ") + error.what();
  }
  return "";
}

Network::Network() {
  on_new_thread([this] {
    // The first namespace only passes the setting on to the second.
    if (unshare(CLONE_NEWNET) != 0) throw system_failure("unshare(CLONE_NEWNET)");
    ask_for_small_tables();
    if (unshare(CLONE_NEWNET) != 0) throw system_failure("unshare(CLONE_NEWNET)");
    bring_up("lo");
    descriptor_ = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    if (descriptor_ < 0) throw system_failure("/proc/thread-self/ns/net");
  });
}

Network::~Network() { close(descriptor_); }

void Network::enter() const {
  if (setns(descriptor_, CLONE_NEWNET) != 0) throw system_failure("setns");
}

void Network::visit(const std::function<void()>& body) const {
  on_new_thread([&] {
    enter();
    body();
  });
}

void Network::join(const End& first, const End& second) {
  first.network.visit([&] {
    run_command("ip link add " + first.interface_name + " type veth peer name " +
                second.interface_name + " netns /proc/" + std::to_string(getpid()) + "/fd/" +
                std::to_string(second.network.descriptor()));
  });
  for (const End* end : {&first, &second}) {
    end->network.visit([end] {
      for (const uint32_t command : {ETHTOOL_STXCSUM, ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_SGRO}) {
        set_feature(end->interface_name, command);
      }
      if (!end->address.empty()) {
        run_command("ip address add " + end->address + " dev " + end->interface_name);
      }
      bring_up(end->interface_name);
    });
  }
}

}  // namespace backend_test
