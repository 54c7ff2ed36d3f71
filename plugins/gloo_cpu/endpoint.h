// Endpoint: where a rank listens for the other ranks of its communicator, as it announces itself in
// the store. Plain values.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace db::gloo_cpu {

using Bytes32 = std::array<uint8_t, 32>;

Bytes32 random_bytes32();  // from the kernel; throws std::system_error if it has none

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

// The address of an interface of this machine (IPv4 if it has one), or the address that the text
// is; port 0. nullopt if there is no such interface.
std::optional<Address> resolve_interface(const std::string& interface_or_address);

// Processes of a user with the same identity may look into each other under /proc, and share a
// network: one running kernel, and the same namespaces.
std::string machine_identity();

struct Endpoint {
  Bytes32 id{};           // random, made for this listener; what a proof is bound to
  std::string machine;    // machine_identity()
  std::string unix_path;  // of its Unix socket, in /proc: open to processes of the same user only
  std::string network;    // text of its TCP address; "": this rank listens on no network
  int32_t size = 0;       // of the communicator, as this rank has it

  std::string encode() const;
  static std::optional<Endpoint> decode(const std::string& text);
};

}  // namespace db::gloo_cpu
