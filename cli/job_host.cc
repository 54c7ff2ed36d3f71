#include "job_host.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <climits>
#include <utility>

#include "rendezvous/network_interface.h"

namespace coupler::cli {

namespace {

// The address to bind on several machines.
std::string shared_address(const JobHostOptions& options) {
  if (!options.interface_name.empty()) {
    return bind_address(options.interface_name);
  }
  if (options.all_interfaces) {
    return "0.0.0.0";
  }
  throw Error(ErrorCode::kConfig, "a job on several machines needs an interface to meet on",
              {.subject = "backend.interface",
               .hint = "set backend.interface to the name or address of the one that the machines "
                       "share (`ip address` lists them), or launch.all_interfaces = true"});
}

std::string machine_name() {
  char name[HOST_NAME_MAX + 1] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace

JobHostOptions job_host_options(const Config& config, int processes, bool several_machines) {
  return {.processes = processes,
          .several_machines = several_machines,
          .tls = config.launch.tls,
          .interface_name = config.backend.interface_name,
          .all_interfaces = config.launch.all_interfaces};
}

JobHost::JobHost(const JobHostOptions& options) : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  StoreServerOptions server;
  server.on_set = [this](const std::string& key, const std::string& value) { on_set(key, value); };
  server.tls = options.tls;
  server.members = static_cast<size_t>(options.processes);
  if (options.several_machines) {
    server.host = shared_address(options);
    server.all_interfaces = options.all_interfaces;
  }
  address_ = {.host = server.host, .secret = random_bytes32(), .tls = options.tls};
  server_.emplace(address_.secret, server);
  address_.port = server_->port();
  if (is_wildcard(address_.host)) {
    address_.host = machine_name();  // an address that stands for all is no place to connect to
  }
  memory_file_ = make_job_memory_file(address_);
  job_file_ = fmt::format("/proc/{}/fd/{}", ::getpid(), memory_file_.get());
}

void JobHost::on_set(const std::string& key, const std::string& value) {
  const auto rank = rank_of_end_key(key);
  if (!rank) {
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    reports_.push_back(decode_end(*rank, value));
  }
  const uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);  // fails only when it is readable already
}

std::vector<RankEnd> JobHost::take_reports() {
  uint64_t count = 0;
  (void)!::read(wake_.get(), &count, sizeof count);  // empties it; whether it was empty is the same
  const std::lock_guard lock(mutex_);
  return std::exchange(reports_, {});
}

void JobHost::tell_shims(ShimOrder order) {
  if (!client_) {
    client_ = std::make_unique<StoreClient>(address_.host, address_.port, address_.secret,
                                            std::chrono::seconds(2), address_.tls);
  }
  client_->set(order_key(told_++), encode(order));
}

}  // namespace coupler::cli
