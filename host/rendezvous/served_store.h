// ServedStore: rank 0's store where no launcher has one: a client like any other rank's, and the
// server it is a client of, as rank 0. [any-thread]
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "config/config.h"
#include "rendezvous/store_client.h"
#include "rendezvous/store_server.h"

namespace coupler {

class ServedStore : public StoreClient {
 public:
  // How rank 0 serves, to be completed.
  static StoreServerOptions server_options(const BackendConfig& backend);

  // client_host: where the server is reached, "" at the address it is bound to. Throws as
  // StoreServer and StoreClient do.
  ServedStore(const Bytes32& secret, const StoreServerOptions& options,
              std::chrono::nanoseconds timeout, const std::string& client_host = "");
  // Lets the others finish their last requests, half a second at most.
  ~ServedStore() override;

  const StoreServer& server() const { return *server_; }

 private:
  // The server is there before its client.
  ServedStore(std::unique_ptr<StoreServer> server, const Bytes32& secret, bool tls,
              std::chrono::nanoseconds timeout, const std::string& client_host);

  std::unique_ptr<StoreServer> server_;
};

}  // namespace coupler
