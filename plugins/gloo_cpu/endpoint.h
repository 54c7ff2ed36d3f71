// Where a rank waits for the other ranks of its communicator. Endpoint: its addresses, as announced
// in the store; Listener: its sockets. Thread rule: that of their owner, one thread.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/error.h"

namespace db::gloo_cpu {

using Bytes32 = std::array<uint8_t, 32>;

Bytes32 random_bytes32();  // from the kernel; throws std::system_error on failure

// A socket's address, of any family this backend uses.
struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;

  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* raw() { return reinterpret_cast<sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  // "10.0.0.1:4711", "[fd00::1]:4711", a path, "" for an unnamed Unix socket.
  std::string text() const;

  static std::optional<Address> unix_path(const std::string& path);  // nullopt: too long
  static std::optional<Address> parse(const std::string& text);
};

Address local_address(int fd);
Address peer_address(int fd);

// The address of an interface of this machine (IPv4 if it has one), or the given numeric address;
// port 0. nullopt if there is no such interface.
std::optional<Address> resolve_interface(const std::string& interface_or_address);

// Processes of one user with the same identity may access each other under /proc and share a
// network: they have the same running kernel and namespaces.
std::string machine_identity();

struct Endpoint {
  Bytes32 id{};           // random, made for this listener; proofs are bound to it
  std::string machine;    // machine_identity()
  std::string unix_path;  // of its Unix socket, in /proc: open to processes of the same user only
  std::string network;    // its TCP address; "": this rank does not listen on a network
  int32_t size = 0;       // of the communicator, as this rank knows it

  std::string encode() const;
  static std::optional<Endpoint> decode(const std::string& text);
};

// Descriptor: owns a file descriptor. Thread rule: that of its owner.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// The sockets stay open from before they are announced until every rank is connected, so that no
// other process can take their addresses.
//
// The Unix socket's file, of mode 0600, exists only at creation. Afterwards it has no name and is
// reached through /proc, which is open only to processes of the same user. So the kernel rejects
// other users, and nothing is left on disk. To an abstract name any process could connect, and send
// descriptors whose closing takes arbitrarily long (SO_LINGER).
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
