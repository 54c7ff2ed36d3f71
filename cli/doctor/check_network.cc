#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <optional>
#include <system_error>

#include "base/error.h"
#include "base/file_descriptor.h"
#include "base/network.h"
#include "base/process.h"
#include "cli/doctor/checks.h"
#include "cli/process/capture_output.h"
#include "cli/text/output.h"

namespace coupler::cli {
namespace {

constexpr int kAnswerMs = 3000;

bool is_ready(int fd, short events) {
  pollfd waiting = {fd, events, 0};
  return poll(&waiting, 1, kAnswerMs) == 1;
}

// Connects to a listener at the address, both on this machine, and sends a byte, as ranks do at
// rendezvous. Returns "" on success, else the problem.
std::string try_address(const std::string& address) {
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST | AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int code = getaddrinfo(address.c_str(), "0", &hints, &list); code != 0) {
    return fmt::format("it is not an address: {}", gai_strerror(code));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, &freeaddrinfo);
  const UniqueFd listener(socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener || bind(listener.get(), list->ai_addr, list->ai_addrlen) != 0 ||
      listen(listener.get(), 1) != 0) {
    return "cannot listen there: " + errno_message();
  }
  sockaddr_storage bound = {};
  socklen_t length = sizeof bound;
  auto* const bound_address = reinterpret_cast<sockaddr*>(&bound);
  if (getsockname(listener.get(), bound_address, &length) != 0) return errno_message();
  const UniqueFd client(socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!client || (connect(client.get(), bound_address, length) != 0 && errno != EINPROGRESS)) {
    return "the connection failed: " + errno_message();
  }
  if (!is_ready(client.get(), POLLOUT)) {
    return fmt::format("the connection was not answered within {} s", kAnswerMs / 1000);
  }
  int failure = 0;
  socklen_t size = sizeof failure;
  getsockopt(client.get(), SOL_SOCKET, SO_ERROR, &failure, &size);
  if (failure != 0) {
    return "the connection failed: " + std::generic_category().message(failure);
  }
  const UniqueFd server(is_ready(listener.get(), POLLIN)
                            ? accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)
                            : -1);
  char byte = 1;
  if (!server || send(client.get(), &byte, 1, MSG_NOSIGNAL) != 1 ||
      !is_ready(server.get(), POLLIN) || recv(server.get(), &byte, 1, 0) != 1) {
    return "the connection is made, but no data comes through";
  }
  return "";
}

// Also looks in the sbin folders, which only root has in PATH.
std::string find_tool(const std::string& name) {
  for (std::string path : {find_in_path(name), "/usr/sbin/" + name, "/sbin/" + name}) {
    if (!path.empty() && access(path.c_str(), X_OK) == 0) return path;
  }
  return "";
}

struct Firewall {
  std::string asked;  // the programs whose rules were read: "nft, iptables"
  std::string drops;  // the policy that drops by default; "" for none
};

// The policy by which the input chain drops what no rule accepts; "" for none.
std::string dropping_rule(const std::string& rules) {
  for (const char* policy : {"-P INPUT DROP", "-P INPUT REJECT"}) {
    if (rules.find(policy) != std::string::npos) return policy;
  }
  for (size_t at = rules.find("hook input"); at != std::string::npos;
       at = rules.find("hook input", at + 1)) {
    const std::string line = rules.substr(at, rules.find('\n', at) - at);
    if (line.find("policy drop") != std::string::npos) return one_line(line);
  }
  return "";
}

Firewall firewall() {
  Firewall found;
  const std::vector<std::vector<std::string>> questions = {{"nft", "list", "ruleset"},
                                                           {"iptables", "-S", "INPUT"}};
  for (std::vector<std::string> question : questions) {
    const std::string name = question[0];
    question[0] = find_tool(name);
    if (question[0].empty()) continue;
    const auto rules = capture_output(question, std::chrono::seconds(3));
    if (!rules) continue;  // it needs root
    found.asked += (found.asked.empty() ? "" : ", ") + name;
    if (found.drops.empty()) found.drops = dropping_rule(*rules);
  }
  return found;
}

}  // namespace

Findings check_network(const config::Config& config) {
  const std::string& name = config.backend.interface;
  const std::string said =
      name.empty() ? "backend.interface is not set: loopback" : "backend.interface = " + name;
  std::string address;
  try {
    address = bind_address(name);
  } catch (const Error& error) {
    return {finding_of(error, "processes cannot connect to each other",
                       "name another interface with -o backend.interface=NAME; available: " +
                           list_network_addresses())};
  }
  if (std::string problem = try_address(address); !problem.empty()) {
    return {
        {Level::kError,
         fmt::format("a trial connection to {} ({}) failed: {}", address, one_line(said), problem),
         "processes cannot connect to each other",
         fmt::format("allow connections to {} in the firewall, or choose another interface with "
                     "-o backend.interface=NAME; available: {}",
                     address, list_network_addresses())}};
  }
  const Finding tried = {
      Level::kOk, fmt::format("{} ({}): a trial connection succeeded{}", address, one_line(said),
                              name.empty() ? "" : "; other machines were not checked")};
  if (name.empty()) return {tried};
  const Firewall rules = firewall();
  if (!rules.drops.empty()) {
    return {tried,
            {Level::kWarning, fmt::format("the firewall drops by default ({})", rules.drops),
             "other machines may not reach this one: the rendezvous port (29500, "
             "--main-port) and the ports above 1024 that the kernel chooses",
             fmt::format("iptables -I INPUT -i {} -s NETWORK/24 -j ACCEPT, with the network of the "
                         "job's machines",
                         one_line(name))}};
  }
  if (rules.asked.empty()) {
    return {tried,
            {Level::kNote,
             "firewall rules could not be read: nft and iptables are not installed or need root",
             "it is unknown whether other machines can reach this one",
             geteuid() == 0 ? install_command("nftables") + ", then coupler doctor again"
                            : "sudo coupler doctor"}};
  }
  return {tried, {Level::kOk, fmt::format("no firewall drops by default ({})", rules.asked)}};
}

}  // namespace coupler::cli
