// SocketPair: one libgloo TCP pair whose connection is driven by Coupler once libgloo has made it.
//
// libgloo's own two modes both fall short here: asynchronous pairs cost a thread hop per message,
// synchronous ones block in write (both sides at once, for messages larger than the socket's
// buffers), know one fixed timeout and cannot be aborted. So the pair connects through libgloo and
// is then taken over: out of libgloo's event loop, full duplex, with a deadline per operation.
// Thread rule: made, connected and taken over by one thread; afterwards only fd() is used.
#pragma once

#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/pair.h>

#include <chrono>
#include <memory>
#include <mutex>

namespace db::gloo_cpu {

using Clock = std::chrono::steady_clock;

class SocketPair final : public gloo::transport::tcp::Pair {
 public:
  using gloo::transport::tcp::Pair::Pair;

  // How long connect() may wait. libgloo itself waits five times its timeout, on either side.
  void set_deadline(Clock::time_point deadline) { deadline_ = deadline; }

  // After connect(): removes the connection from libgloo's event loop and returns its descriptor,
  // which stays valid until the pair is destroyed. Throws what libgloo throws.
  int take_over();

 protected:
  void waitUntilConnected(std::unique_lock<std::mutex>& lock, bool use_timeout) override;
  // Whatever arrives before take_over() is ours, not libgloo's: left in the socket.
  void handleReadWrite(int events) override;

 private:
  Clock::time_point deadline_ = Clock::time_point::max();
};

// The context that owns the pairs of one communicator; libgloo's, but for the class of its pairs.
class SocketContext final : public gloo::transport::tcp::Context {
 public:
  SocketContext(std::shared_ptr<gloo::transport::tcp::Device> device, int own_rank, int ranks);

  std::unique_ptr<gloo::transport::Pair>& createPair(int peer) override;
  SocketPair& pair(int peer);

  // Once every pair is taken over none of them looks at the device again.
  void forget_device() { device_.reset(); }
};

}  // namespace db::gloo_cpu
