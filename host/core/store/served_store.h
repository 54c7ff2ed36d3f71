// ServedStore: rank 0's store if no launcher hosts one. Owns the server and is a client of it, like
// any other rank. [any-thread]
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "config/config.h"
#include "store/store_client.h"
#include "store/store_server.h"

namespace coupler {

class ServedStore : public StoreClient {
 public:
  // How rank 0 serves; the caller completes it.
  static StoreServerOptions server_options(const BackendConfig& backend);

  // client_host: where the client reaches the server; "": at the address it is bound to. Throws
  // what StoreServer and StoreClient throw.
  ServedStore(const Bytes32& secret, const StoreServerOptions& options,
              std::chrono::nanoseconds timeout, const std::string& client_host = "");
  // Gives the other ranks up to half a second to finish their last requests.
  ~ServedStore() override;

  const StoreServer& server() const { return *server_; }

 private:
  // Creates the server before its client.
  ServedStore(std::unique_ptr<StoreServer> server, const Bytes32& secret, bool tls,
              std::chrono::nanoseconds timeout, const std::string& client_host);

  std::unique_ptr<StoreServer> server_;
};

}  // namespace coupler
