#include "cli/launch/network_job.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "base/host_lookup.h"
#include "base/network_interface.h"
#include "base/unique_fd.h"
#include "rendezvous/network_store.h"

namespace coupler::cli {
namespace {

constexpr auto kLookUpTime = std::chrono::seconds(10);

Bytes32 secret_of(const NetworkJob& job) {
  return read_secret_file(job.secret_file, "launch " + job.nonce);
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
         (!plan.config.backend.interface_name.empty() || !plan.host_file.hosts.empty());
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
  const auto& interface = plan.config.backend.interface_name;
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

JobAddress read_network_job(const std::string& text) {
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

}  // namespace coupler::cli
