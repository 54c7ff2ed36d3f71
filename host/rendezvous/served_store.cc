#include "rendezvous/served_store.h"

#include <thread>

namespace coupler {
namespace {

constexpr auto kLinger = std::chrono::milliseconds(500);

}  // namespace

ServedStore::ServedStore(const Bytes32& secret, const StoreServerOptions& options,
                         std::chrono::nanoseconds timeout, const std::string& client_host)
    : server_(secret, options),
      client_(client_host.empty() ? server_.host() : client_host, server_.port(), secret, timeout,
              options.tls) {}

ServedStore::~ServedStore() {
  const auto deadline = deadline_after(kLinger);
  while (server_.clients() > 1 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

void ServedStore::set(const std::string& key, const std::string& value) { client_.set(key, value); }

std::optional<std::string> ServedStore::get(const std::string& key,
                                            std::chrono::nanoseconds timeout) {
  return client_.get(key, timeout);
}

std::vector<std::optional<std::string>> ServedStore::get_ranks(const std::string& prefix, int count,
                                                               std::chrono::nanoseconds timeout) {
  return client_.get_ranks(prefix, count, timeout);
}

int64_t ServedStore::add(const std::string& key, int64_t delta) { return client_.add(key, delta); }

}  // namespace coupler
