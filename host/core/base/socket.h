// Blocking TCP with deadlines, for the clients of a store. Sockets are close-on-exec and never
// raise SIGPIPE. Plain functions, [any-thread]; one sender and one receiver per socket at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "base/file_descriptor.h"

namespace coupler {

using Deadline = std::chrono::steady_clock::time_point;

// now + timeout, without overflow for very long timeouts (at most 30 days).
Deadline deadline_after(std::chrono::nanoseconds timeout);

// Milliseconds left for poll(), rounded up; 0 when the deadline has passed.
int poll_timeout(Deadline deadline);

enum class IoResult { kOk, kClosed, kTimeout };

// Connects to a numeric address or host name. With retry, tries again until the deadline while the
// connection is refused (the other side may not listen yet) or a pod's name is not known yet.
// Throws Error(kPeerLost or kTimeout) naming address and reason.
UniqueFd connect_tcp(const std::string& host, int port, Deadline deadline, bool retry);

// Transfer all bytes or fail. kClosed: the peer is gone (or reset the connection).
IoResult send_all(int fd, const void* data, size_t size, Deadline deadline);
IoResult receive_all(int fd, void* data, size_t size, Deadline deadline);

// Receives what has arrived, between 1 and size bytes; `got` is their number.
IoResult receive_some(int fd, void* data, size_t size, Deadline deadline, size_t& got);

}  // namespace coupler
