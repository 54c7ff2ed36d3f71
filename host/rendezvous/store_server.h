// StoreServer: hosts a job's store on a TCP port or a Unix socket, served by one thread of its own.
// The members are [any-thread]; observers run on that thread and must return at once.
//
// Nobody is served who does not prove knowledge of the job's secret (store_wire.h). A stranger is
// dropped after handshake_timeout, or earlier when too many are there: the oldest goes first. What
// strangers hold is bounded, in number, memory and descriptors, so that members are served and let
// in whoever else is at the door. On a Unix socket (local_socket.h) other users are not even
// strangers: the kernel keeps them out, and whom it lets in all the same (root) is closed at once.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "rendezvous/peers.h"
#include "rendezvous/process_identity.h"
#include "rendezvous/secret.h"
#include "rendezvous/store_table.h"

namespace coupler {

struct StoreServerOptions {
  // For ranks of this machine only: a Unix socket without a name, and no port.
  static constexpr const char* kUnnamed = "unix";
  // A numeric address, IPv4 or IPv6 (see bind_address()); kUnnamed; or the path of a private
  // folder, in which a Unix socket is made.
  std::string host = "127.0.0.1";
  bool all_interfaces = false;  // allows a host of 0.0.0.0 or ::
  int port = 0;                 // 0: any free one
  bool tls = false;             // TLS 1.3 (store_tls.h); clients have to know
  size_t members = 0;           // how many are to come, where that is known
  StoreLimits limits;
  std::chrono::milliseconds handshake_timeout = std::chrono::seconds(2);
  // Ranks that join (StoreClient::join) are lost when they have said nothing for about that long;
  // zero: never for that.
  std::chrono::milliseconds peer_timeout{0};
  int host_rank = -1;  // the rank this process is; -1: none
  // Called after each set().
  std::function<void(const std::string& key, const std::string& value)> on_set;
  // Called when a rank is lost, or has left.
  std::function<void(const PeerLoss& loss)> on_lost;
};

class StoreServer {
 public:
  // Bound and listening when it returns. Throws Error(kIo) naming the address: port in use, host
  // that is none of this machine, no folder for a socket; Error(kConfig) for all interfaces where
  // that was not asked for.
  explicit StoreServer(const Bytes32& secret, const StoreServerOptions& options = {});
  ~StoreServer();  // closes every connection: clients see Error(kPeerLost)
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  // Where clients connect. Of a Unix socket the host is its path, and the port 0.
  const std::string& host() const;
  int port() const;
  size_t clients() const;  // authenticated connections now

  // Says which process of this machine will be that rank, so that its loss is known before it
  // joins.
  void watch(int rank, const ProcessIdentity& process);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace coupler
