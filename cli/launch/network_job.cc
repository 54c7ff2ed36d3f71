#include "cli/launch/network_job.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <sstream>
#include <system_error>

#include "base/file_descriptor.h"
#include "base/network.h"
#include "rendezvous/host_store.h"

namespace coupler::cli {
namespace {

constexpr auto kLookUpTime = std::chrono::seconds(10);

Bytes32 secret_of(const NetworkJob& job) {
  return rendezvous::read_secret_file(job.secret_file, "launch " + job.nonce);
}

// The local address from which packets to that host leave. Sends nothing.
std::string address_towards(const std::string& host) {
  const auto found = look_up_host(host, 9, deadline_after(kLookUpTime));
  if (!found.list) {
    throw Error(
        ErrorCode::kConfig,
        fmt::format("this machine cannot resolve the hostfile's {}: {}", host, found.failure),
        {.subject = host, .hint = "correct the hostfile, or use an address"});
  }
  const UniqueFd probe(::socket(found.list->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  if (!probe || ::connect(probe.get(), found.list->ai_addr, found.list->ai_addrlen) != 0 ||
      ::getsockname(probe.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0) {
    throw Error(ErrorCode::kConfig,
                fmt::format("this machine has no route to the hostfile's {}", host),
                {.subject = host,
                 .hint = "correct the hostfile, or name the interface that the machines share: "
                         "--interface NAME"});
  }
  return numeric_address(reinterpret_cast<const sockaddr*>(&own));
}

}  // namespace

bool can_have_network_store(const LaunchPlan& plan) {
  return !plan.config.launch.secret_file.empty() &&
         (!plan.config.backend.interface.empty() || !plan.host_file.hosts.empty());
}

NetworkJob make_network_job(const LaunchPlan& plan) {
  if (!can_have_network_store(plan)) {
    throw Error(ErrorCode::kConfig,
                "mpirun starts these ranks on several machines, which need a shared secret "
                "(launch.secret_file) and a place to meet (a hostfile, or backend.interface)",
                {.subject = "launch.secret_file",
                 .hint = "create a secret, `(umask 077; head -c 32 /dev/urandom > job.secret)`, "
                         "copy it to every machine, and pass -o launch.secret_file=PATH "
                         "--interface NAME"});
  }
  NetworkJob job;
  job.nonce = to_hex(random_bytes32());
  job.secret_file = std::filesystem::absolute(plan.config.launch.secret_file).string();
  const auto& interface = plan.config.backend.interface;
  const auto& hosts = plan.host_file.hosts;
  const auto other = std::find_if(hosts.begin(), hosts.end(), [](const HostSlots& entry) {
    return !is_this_machine(entry.host);
  });
  job.address = {.host = interface.empty() ? address_towards(other->host) : bind_address(interface),
                 .secret = secret_of(job),
                 .tls = plan.config.launch.tls};
  return job;
}

std::string encode(const NetworkJob& job) {
  return fmt::format("{} {} {} {} {}", job.address.host, job.address.port,
                     job.address.tls ? "tls" : "plain", job.nonce, job.secret_file);
}

rendezvous::JobAddress read_network_job(const std::string& text) {
  NetworkJob job;
  std::string tls;
  std::istringstream words(text);
  if (!(words >> job.address.host >> job.address.port >> tls >> job.nonce) ||
      !std::getline(words >> std::ws, job.secret_file)) {
    throw Error(
        ErrorCode::kConfig,
        fmt::format("{}='{}' was not set by this version of `coupler launch`", kShimStore, text),
        {.subject = kShimStore, .hint = "run the same version of Coupler on every machine"});
  }
  job.address.tls = tls == "tls";
  job.address.secret = secret_of(job);
  return job.address;
}

namespace {

// How long a launcher waits for its pod's name to appear.
constexpr auto kNameTimeout = std::chrono::seconds(30);

// 0, or errno of a trial bind.
int try_bind(const addrinfo& address) {
  const UniqueFd fd(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) {
    return errno;
  }
  const int yes = 1;  // a port whose last user has just ended is free
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  const bool bound =
      ::bind(fd.get(), address.ai_addr, address.ai_addrlen) == 0 && ::listen(fd.get(), 1) == 0;
  return bound ? 0 : errno;
}

}  // namespace

void check_interface(const std::string& interface_or_address, const std::string& said_by) {
  const auto address = bind_address(interface_or_address, said_by);
  if (is_wildcard(address)) {
    throw Error(
        ErrorCode::kConfig,
        fmt::format("'{}' means all network interfaces, but connections need a specific one "
                    "({})",
                    interface_or_address, said_by),
        {.subject = interface_or_address,
         .hint = fmt::format("name one with --interface, or omit it for loopback: {}",
                             list_network_addresses())});
  }
}

void check_own_address_and_port(const std::string& host, int port) {
  const auto found = look_up_host(host, port, deadline_after(kNameTimeout));
  if (!found.list) {
    throw Error(ErrorCode::kUsage, fmt::format("unknown host '{}': {}", host, found.failure),
                {.subject = host, .hint = "give the first machine's address with --main-address"});
  }
  const int failure = try_bind(*found.list);
  if (failure == EADDRNOTAVAIL) {
    throw Error(ErrorCode::kUsage,
                fmt::format("'{}' is not an address of this machine, but the others connect to "
                            "machine 0",
                            host),
                {.subject = host,
                 .hint = "give machine 0's own address with --main-address, or give this machine "
                         "another --machine-rank"});
  }
  if (failure != 0) {
    throw Error(ErrorCode::kUsage,
                fmt::format("port {} of {} cannot be used: {}", port, host,
                            std::generic_category().message(failure)),
                {.subject = fmt::format("{}:{}", host, port),
                 .hint = "choose another --main-port, the same on all machines"});
  }
}

}  // namespace coupler::cli
