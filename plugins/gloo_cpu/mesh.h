// Mesh: connections from this rank to every other, made by libgloo, met through the store.
// Thread rule: one thread; the descriptors may be used by any.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bootstrap_store.h"
#include "socket_pair.h"

namespace db::gloo_cpu {

struct MeshOptions {
  int32_t rank = 0;
  int32_t size = 1;
  std::string interface_name;  // interface or address; "": loopback
  int64_t deadline_ns = 0;     // now_ns() clock
};

class Mesh {
 public:
  // Blocks until every pair is connected and has proved that it belongs to this communicator, or
  // the deadline has passed: then *failure names the rank that was waited for.
  static std::unique_ptr<Mesh> connect(const MeshOptions& options, const BootstrapStore& store,
                                       Failure* failure);
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  // By rank, -1 for this one. They live as long as the mesh.
  const std::vector<int>& descriptors() const { return descriptors_; }

 private:
  Mesh() = default;
  Failure connect_pairs(const MeshOptions& options, const BootstrapStore& store,
                        const std::shared_ptr<gloo::transport::tcp::Device>& device);
  Failure greet(const MeshOptions& options);

  std::shared_ptr<SocketContext> context_;
  std::vector<int> descriptors_;
  std::vector<uint64_t> nonces_;  // by rank
};

}  // namespace db::gloo_cpu
