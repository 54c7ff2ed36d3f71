// Where a rank waits for the other ranks of its communicator. Endpoint: its addresses, as announced
// in the store; Listener: its sockets. Thread rule: that of their owner, one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/local_socket.h"

namespace db::gloo_cpu {

// A numeric address with its port, as Address::text() writes it.
std::optional<Address> parse_address(const std::string& text);

// The address of an interface of this machine (IPv4 if it has one), or the given numeric address;
// port 0. nullopt if there is no such interface.
std::optional<Address> resolve_interface(const std::string& interface_or_address);

struct Endpoint {
  Bytes32 id{};           // random, made for this listener; proofs are bound to it
  std::string machine;    // machine_identity()
  std::string unix_path;  // of its Unix socket, in /proc: open to processes of the same user only
  std::string network;    // its TCP address; "": this rank does not listen on a network
  int32_t size = 0;       // of the communicator, as this rank knows it

  std::string encode() const;
  static std::optional<Endpoint> decode(const std::string& text);
};

// The sockets stay open from before they are announced until every rank is connected, so that no
// other process can take their addresses.
class Listener {
 public:
  // A Unix socket and, if interface_or_address is not empty, a TCP socket there.
  static Failure open(const std::string& interface_or_address, Listener* result);

  // To be announced; the caller sets size.
  const Endpoint& endpoint() const { return endpoint_; }
  const std::vector<Descriptor>& sockets() const { return sockets_; }

  // The next pending connection at sockets()[index], non-blocking. An empty descriptor if there is
  // none: see errno (EAGAIN: none is pending). A Unix socket skips processes of other users.
  Descriptor accept(size_t index);

 private:
  std::vector<Descriptor> sockets_;
  Descriptor file_;  // of the Unix socket: the target of its path in /proc
  Endpoint endpoint_;
};

}  // namespace db::gloo_cpu
