// Network: a network namespace of the test's own, with its loopback up, in which it puts ranks and
// strangers; wires join two of them as a cable joins two machines. A descriptor keeps the namespace
// alive and nothing else: it has no name, so it is gone with its last process, however that ends.
// Owned by one thread.
#pragma once

#include <functional>
#include <string>

namespace backend_test {

class Network {
 public:
  // Why there can be none, or none with wires, here; "": all of it works.
  static std::string why_not();

  Network();  // throws std::runtime_error
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  int descriptor() const { return descriptor_; }

  // Moves the calling thread, or forked process, there for good. Throws std::system_error.
  void enter() const;

  // Runs something on a thread that is there, and waits for it. What it throws is thrown here.
  void visit(const std::function<void()>& body) const;

  // Puts one end of a new wire into each of two networks, as an interface of that name. address:
  // "10.77.0.1/24", "" for an end that only passes frames on. The ends leave the work of cutting
  // and checksumming segments to nobody, so that whoever passes frames on sees what goes over a
  // real cable.
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
