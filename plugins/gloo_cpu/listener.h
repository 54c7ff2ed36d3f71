// Listener: the sockets on which a rank waits for the others of its communicator, open from before
// they are announced until every rank is connected: nobody else can take their addresses meanwhile.
//
// The Unix socket has a file of mode 0600 for the moment of its making; then it has no name, and is
// reached through /proc, which is open to processes of the same user only. So the kernel refuses
// other users, and nothing is left on disk. To an abstract name everybody could connect, and send
// descriptors along, whose closing takes as long as he likes (SO_LINGER).
// Thread rule: one thread.
#pragma once

#include <string>
#include <vector>

#include "common/error.h"
#include "descriptor.h"
#include "endpoint.h"

namespace db::gloo_cpu {

class Listener {
 public:
  // A Unix socket; if interface_or_address is not empty also a TCP socket there.
  static Failure open(const std::string& interface_or_address, Listener* result);

  // To be announced; size is left to the caller.
  const Endpoint& endpoint() const { return endpoint_; }
  const std::vector<Descriptor>& sockets() const { return sockets_; }

  // The next connection that waits at sockets()[index], non-blocking; none: an empty descriptor,
  // and errno says why (EAGAIN: none is there). Processes of other users are turned away at a Unix
  // socket, and passed over.
  Descriptor accept(size_t index);

 private:
  std::vector<Descriptor> sockets_;
  Descriptor file_;  // of the Unix socket: what its path in /proc leads to
  Endpoint endpoint_;
};

// Whether the process at the other end of a Unix socket (who connected, or who called listen) runs
// as this user.
bool is_same_user(int fd);

}  // namespace db::gloo_cpu
