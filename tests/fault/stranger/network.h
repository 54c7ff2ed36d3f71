// Network: the test's own network namespace, with loopback up, in which it runs ranks and
// strangers. A wire joins two of them like a cable between two machines. Only a descriptor keeps
// the namespace alive: it has no name, so it disappears with its last process, however that ends.
// Owned by one thread.
#pragma once

#include <functional>
#include <string>

namespace backend_test {

class Network {
 public:
  // Why namespaces, or wires, cannot be created here; "" if they can.
  static std::string why_not();

  Network();  // throws std::runtime_error
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  int descriptor() const { return descriptor_; }

  // Moves the calling thread, or forked process, there permanently. Throws std::system_error.
  void enter() const;

  // Runs body on a thread in this network, waits for it, and rethrows its exception.
  void visit(const std::function<void()>& body) const;

  // Puts one end of a new wire into each of two networks, as an interface of that name. address:
  // "10.77.0.1/24"; "" for an end that only forwards frames. Segmentation and checksum offload are
  // off, so that a forwarder sees the frames of a real cable.
  struct End {
    const Network& network;
    std::string interface_name;
    std::string address;
  };
  static void join(const End& first, const End& second);

 private:
  int descriptor_ = -1;
};

}  // namespace backend_test
