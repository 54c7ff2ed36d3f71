#include "rendezvous/network_store.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "base/fail.h"
#include "base/host_lookup.h"
#include "base/network_interface.h"
#include "base/private_file.h"
#include "config/wrapper_base.h"
#include "rendezvous/job_file.h"
#include "store/served_store.h"

namespace coupler {
namespace {

constexpr size_t kLeastSecret = 32;
constexpr size_t kMostSecret = 65536;

constexpr const char* kMakeSecret =
    "make one, `(umask 077; head -c 32 /dev/urandom > job.secret)`, and copy it to every machine, "
    "or start the job with torchrun";

std::string of_several(const ProcessInfo& process) {
  return fmt::format("{} of {} ranks run on this machine", process.local_world, process.world);
}

bool moves_by_mpi(const BackendConfig& backend) {
  return backend.use == "mpi" || wrapper_base(backend, backend.use) == "mpi";
}

void check_interface_is_set(const ProcessInfo& process, const BackendConfig& backend) {
  if (backend.interface_name.empty()) {
    fail_config(
        fmt::format("{}, but backend.interface, through which they reach each other, is not set",
                    of_several(process)),
        "backend.interface",
        fmt::format("name the interface that the machines share; this machine has {}",
                    list_network_addresses()));
  }
}

// Ranks of a restarted job must not meet those left over from an earlier start.
Bytes32 secret_of_this_start(const std::string& path) {
  const char* count = std::getenv("COUPLER_RESTART_COUNT");
  return read_secret_file(path, fmt::format("start {}", count == nullptr ? "0" : count));
}

// Where rank 0 listens.
std::string listening_address(const ProcessInfo& process, const Config& config) {
  if (!config.backend.interface_name.empty()) return bind_address(config.backend.interface_name);
  if (config.launch.all_interfaces) return "0.0.0.0";
  const auto found =
      look_up_host(process.store_host, process.store_port, deadline_after(config.backend.timeout));
  if (!found.list) {
    fail_config(fmt::format("MASTER_ADDR={} cannot be resolved on this machine: {}",
                            process.store_host, found.failure),
                "MASTER_ADDR", "set it to the address of rank 0's machine");
  }
  const auto own = network_addresses();
  for (const addrinfo* host = found.list.get(); host != nullptr; host = host->ai_next) {
    auto address = numeric_address(host->ai_addr);
    if (std::any_of(own.begin(), own.end(),
                    [&](const NetworkAddress& entry) { return entry.address == address; })) {
      return address;
    }
  }
  fail_config(fmt::format("MASTER_ADDR={} is not an address of rank 0's machine, which has {}",
                          process.store_host, list_network_addresses()),
              "MASTER_ADDR", "set it to an address of the machine that runs rank 0");
}

}  // namespace

Bytes32 read_secret_file(const std::string& path, std::string_view purpose) {
  const std::string text = read_private_file("launch.secret_file", path, kMostSecret, kMakeSecret);
  if (text.size() < kLeastSecret) {
    fail_config(fmt::format("launch.secret_file {} holds {} bytes, but a secret needs at least {}",
                            path, text.size(), kLeastSecret),
                "launch.secret_file", kMakeSecret);
  }
  return derive_key(Digest().update(text).finish(), purpose);
}

std::shared_ptr<Store> host_or_join_through(Store& agent, const ProcessInfo& process,
                                            const Config& config) {
  check_interface_is_set(process, config.backend);
  const std::string key = "coupler/store";
  const bool has_file = !config.launch.secret_file.empty();
  if (process.rank == 0) {
    const Bytes32 secret =
        has_file ? secret_of_this_start(config.launch.secret_file) : random_bytes32();
    StoreServerOptions options = ServedStore::server_options(config.backend);
    options.host = bind_address(config.backend.interface_name);
    options.tls = config.launch.tls;
    options.members = static_cast<size_t>(process.world);
    auto store = std::make_shared<ServedStore>(secret, options, config.backend.timeout);
    agent.set(key, format_job_file({.host = options.host,
                                    .port = store->server().port(),
                                    .secret = has_file ? Bytes32{} : secret,
                                    .tls = options.tls}));
    return store;
  }
  const auto text = agent.get(key, config.backend.timeout);
  const auto job = text ? parse_job_file(*text) : std::nullopt;
  if (!job) {
    throw Error(ErrorCode::kTimeout,
                "rank 0 did not publish the address of the job's store in torchrun's store",
                {.rank = 0,
                 .subject = key,
                 .hint = "look at rank 0's messages; raise backend.timeout if startup takes "
                         "longer"});
  }
  const Bytes32 secret = has_file ? secret_of_this_start(config.launch.secret_file) : job->secret;
  auto store =
      std::make_shared<StoreClient>(job->host, job->port, secret, config.backend.timeout, job->tls);
  store->join(process.rank);
  return store;
}

std::shared_ptr<Store> host_or_join_network_store(const ProcessInfo& process,
                                                  const Config& config) {
  if (process.store_host.empty()) {
    fail_config(fmt::format("{}, but MASTER_ADDR and MASTER_PORT, where they meet, are not set",
                            of_several(process)),
                "MASTER_ADDR",
                "set both on every machine: an address of rank 0's machine and a free port");
  }
  if (config.launch.secret_file.empty()) {
    fail_config(
        fmt::format("{}, but launch.secret_file, which lets them trust each other, is not set",
                    of_several(process)),
        "launch.secret_file", kMakeSecret);
  }
  if (!moves_by_mpi(config.backend)) {
    check_interface_is_set(process, config.backend);
  }
  const Bytes32 secret = secret_of_this_start(config.launch.secret_file);
  if (process.rank != 0) {
    auto store = std::make_shared<StoreClient>(process.store_host, process.store_port, secret,
                                               config.backend.timeout, config.launch.tls,
                                               StoreClient::Start::kWhenItListens);
    store->join(process.rank);
    return store;
  }
  StoreServerOptions options = ServedStore::server_options(config.backend);
  options.host = listening_address(process, config);
  options.all_interfaces = config.launch.all_interfaces;
  options.port = process.store_port;
  options.tls = config.launch.tls;
  options.members = static_cast<size_t>(process.world);
  return std::make_shared<ServedStore>(secret, options, config.backend.timeout,
                                       is_wildcard(options.host) ? "127.0.0.1" : "");
}

}  // namespace coupler
