// StoreServer: hosts a job's store on a TCP port or a Unix socket, on one thread of its own. Its
// member functions are [any-thread]; observers run on that thread and must return at once.
//
// It serves only clients that prove they know the job's secret (wire.h). A connection that has not
// authenticated yet is dropped after handshake_timeout, or earlier, oldest first, if there are too
// many. The number, memory and descriptors of these connections are bounded, so that members can
// always connect and are served. On a Unix socket (link.h), other users do not even get that far:
// the kernel keeps them out, and a connection that it admits anyway (root) is closed at once.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/process.h"
#include "base/sha256.h"
#include "config/config.h"
#include "store/client.h"
#include "store/peers.h"
#include "store/table.h"

namespace coupler::store {

struct StoreServerOptions {
  // For ranks of this machine only: a Unix socket without a name, and no port.
  static constexpr const char* kUnnamed = "unix";
  // A numeric address, IPv4 or IPv6 (see bind_address()); kUnnamed; or the path of a private folder
  // in which a Unix socket is created.
  std::string host = "127.0.0.1";
  bool all_interfaces = false;  // allows a host of 0.0.0.0 or ::
  int port = 0;                 // 0: any free one
  bool tls = false;             // TLS 1.3 (link.h); clients must use it, too
  size_t members = 0;           // how many are expected; 0: unknown
  StoreLimits limits;
  std::chrono::milliseconds handshake_timeout = std::chrono::seconds(2);
  // Ranks that have joined (StoreClient::join) are lost after about this long without a sign of
  // life; zero: never for that reason.
  std::chrono::milliseconds peer_timeout{0};
  int host_rank = -1;  // the rank this process is; -1: none
  // Called after each set().
  std::function<void(const std::string& key, const std::string& value)> on_set;
  // Called when a rank is lost or has left.
  std::function<void(const PeerLoss& loss)> on_lost;
};

class StoreServer {
 public:
  // Bound and listening on return. Throws Error(kIo) naming the address if the port is in use, the
  // host is not an address of this machine, or there is no folder for a socket; Error(kConfig) for
  // all interfaces without all_interfaces.
  explicit StoreServer(const Bytes32& secret, const StoreServerOptions& options = {});
  ~StoreServer();  // closes every connection: clients see Error(kPeerLost)
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  // Where clients connect. For a Unix socket, host is its path and port 0.
  const std::string& host() const;
  int port() const;
  size_t clients() const;  // authenticated connections now

  // Announces which process of this machine will be that rank, so that its loss is noticed before
  // it joins.
  void watch(int rank, const ProcessIdentity& process);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// RankZeroStore: rank 0's store if no launcher hosts one. Owns the server and is a client of it,
// like any other rank. [any-thread]
class RankZeroStore : public StoreClient {
 public:
  // How rank 0 serves; the caller completes it.
  static StoreServerOptions server_options(const config::BackendConfig& backend);

  // client_host: where the client reaches the server; "": at the address it is bound to. Throws
  // what StoreServer and StoreClient throw.
  RankZeroStore(const Bytes32& secret, const StoreServerOptions& options,
                std::chrono::nanoseconds timeout, const std::string& client_host = "");
  // Gives the other ranks up to half a second to finish their last requests.
  ~RankZeroStore() override;

  const StoreServer& server() const { return *server_; }

 private:
  // Creates the server before its client.
  RankZeroStore(std::unique_ptr<StoreServer> server, const Bytes32& secret, bool tls,
                std::chrono::nanoseconds timeout, const std::string& client_host);

  std::unique_ptr<StoreServer> server_;
};

}  // namespace coupler::store
