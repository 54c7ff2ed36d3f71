// Listener: the sockets on which a rank waits for the other ranks of its communicator. They stay
// open from before they are announced until every rank is connected, so that no other process can
// take their addresses.
//
// The Unix socket's file, of mode 0600, exists only at creation. Afterwards it has no name and is
// reached through /proc, which is open only to processes of the same user. So the kernel rejects
// other users, and nothing is left on disk. To an abstract name any process could connect, and send
// descriptors whose closing takes arbitrarily long (SO_LINGER).
// Thread rule: one thread.
#pragma once

#include <string>
#include <vector>

#include "common/error.h"
#include "gloo_cpu/endpoint.h"

namespace db::gloo_cpu {

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

// Whether the process at the other end of a Unix socket (the one that called connect or listen)
// runs as this user.
bool is_same_user(int fd);

}  // namespace db::gloo_cpu
