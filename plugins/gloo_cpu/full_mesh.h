// FullMesh: an authenticated connection from this rank to every other rank of its communicator.
//
// Each rank opens its listener, announces it in the store, connects to the ranks below it and
// accepts connections from those above. A peer that does not authenticate costs the ranks nothing:
// its connection is dropped, and theirs are retried until the deadline. Thread rule: connect() and
// the destructor: one thread; connections: as connection.h says.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/bootstrap_store.h"
#include "gloo_cpu/connection.h"

namespace db::gloo_cpu {

struct FullMeshOptions {
  int32_t rank = 0;
  int32_t size = 1;
  std::string interface_name;  // interface or address for the ranks of other machines; "": none
  Protect protect = Protect::kNone;  // of connections over a network
  int64_t deadline_ns = 0;           // now_ns() clock
};

class FullMesh {
 public:
  // Blocks until every pair is connected. After the deadline, *failure names a missing rank.
  static std::unique_ptr<FullMesh> connect(const FullMeshOptions& options,
                                           const BootstrapStore& store, Failure* failure);

  // By rank, NULL for this one. They live as long as the mesh.
  std::vector<Connection*> connections() const;
  std::string describe() const;  // "2 over Unix sockets, 1 over TCP with TLS"

 private:
  friend class FullMeshBuilder;
  FullMesh() = default;

  TlsContext tls_{nullptr, &SSL_CTX_free};  // NULL: no protection
  Protect protect_ = Protect::kNone;
  std::vector<std::unique_ptr<Connection>> connections_;  // by rank
};

}  // namespace db::gloo_cpu
