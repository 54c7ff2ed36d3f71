// ServedStore: rank 0's store where no launcher has one: the server, and a client of it like any
// other rank's. [any-thread]
#pragma once

#include <chrono>
#include <memory>

#include "rendezvous/store_client.h"
#include "rendezvous/store_server.h"

namespace coupler {

class ServedStore : public Store {
 public:
  // client_host: where the server is reached, "" at the address it is bound to. Throws as
  // StoreServer and StoreClient do.
  ServedStore(const Bytes32& secret, const StoreServerOptions& options,
              std::chrono::nanoseconds timeout, const std::string& client_host = "");
  // Lets the others finish their last requests, half a second at most.
  ~ServedStore() override;
  ServedStore(const ServedStore&) = delete;
  ServedStore& operator=(const ServedStore&) = delete;

  const StoreServer& server() const { return server_; }

  void set(const std::string& key, const std::string& value) override;
  std::optional<std::string> get(const std::string& key, std::chrono::nanoseconds timeout) override;
  std::vector<std::optional<std::string>> get_ranks(const std::string& prefix, int count,
                                                    std::chrono::nanoseconds timeout) override;
  int64_t add(const std::string& key, int64_t delta) override;

 private:
  StoreServer server_;
  StoreClient client_;
};

}  // namespace coupler
