#include "store/served_store.h"

#include <thread>
#include <utility>

namespace coupler {
namespace {

constexpr auto kLinger = std::chrono::milliseconds(500);

}  // namespace

ServedStore::ServedStore(const Bytes32& secret, const StoreServerOptions& options,
                         std::chrono::nanoseconds timeout, const std::string& client_host)
    : ServedStore(std::make_unique<StoreServer>(secret, options), secret, options.tls, timeout,
                  client_host) {
  if (options.host_rank >= 0) {
    join(options.host_rank);
  }
}

ServedStore::ServedStore(std::unique_ptr<StoreServer> server, const Bytes32& secret, bool tls,
                         std::chrono::nanoseconds timeout, const std::string& client_host)
    : StoreClient(client_host.empty() ? server->host() : client_host, server->port(), secret,
                  timeout, tls),
      server_(std::move(server)) {}

StoreServerOptions ServedStore::server_options(const BackendConfig& backend) {
  StoreServerOptions options;
  options.peer_timeout = std::chrono::ceil<std::chrono::milliseconds>(backend.peer_timeout);
  options.host_rank = 0;
  return options;
}

ServedStore::~ServedStore() {
  leave();  // while the server still runs
  const auto deadline = deadline_after(kLinger);
  while (server_->clients() > 1 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace coupler
