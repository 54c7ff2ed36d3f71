// Sockets between the processes of one machine, and what every socket of a transport needs: owned
// descriptors, addresses, random ids. Plain values and functions; [any-thread].
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

namespace db {

using Bytes32 = std::array<uint8_t, 32>;

Bytes32 random_bytes32();  // from the kernel; throws std::system_error on failure

// A socket's address, of any family that a transport uses.
struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;

  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* raw() { return reinterpret_cast<sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  // "10.0.0.1:4711", "[fd00::1]:4711", a path, "" for an unnamed Unix socket.
  std::string text() const;

  static std::optional<Address> unix_path(const std::string& path);  // nullopt: too long
};

Address local_address(int fd);
Address peer_address(int fd);

// Processes of one user with the same identity may access each other under /proc and share a
// network: they have the same running kernel and namespaces.
std::string machine_identity();

// Descriptor: owns a file descriptor.
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

// A listening Unix socket, non-blocking; an empty descriptor on failure: see errno. *file: its
// file, which must stay open while ranks connect through /proc/PID/fd/FILE. backend: a part of its
// name.
//
// The file, of mode 0600, exists only at creation. Afterwards it has no name and is reached through
// /proc, which is open only to processes of the same user. So the kernel rejects other users, and
// nothing is left on disk. To an abstract name any process could connect, and send descriptors
// whose closing takes arbitrarily long (SO_LINGER).
Descriptor listen_locally(const char* backend, Descriptor* file);

// The same with a random abstract name (*name, which begins with a zero byte), for ranks that
// cannot see each other's /proc. Whoever accepts from it must check is_same_user().
Descriptor listen_abstractly(const char* backend, std::string* name);

// Whether the process at the other end of a Unix socket (the one that called connect or listen)
// runs as this user.
bool is_same_user(int fd);

// 64 digits, and back; false if text is not that.
std::string to_hex(const Bytes32& bytes);
bool from_hex(const std::string& text, Bytes32* bytes);

}  // namespace db
