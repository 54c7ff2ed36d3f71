// TwoHosts: two network namespaces, "host" 0 and 1, joined by their own wire, in which a test runs
// programs as on two machines. The object creates and removes them; needs root and `ip`.
// Single-threaded, except that cut_wire() may be called during run().
#pragma once

#include <array>
#include <string>

namespace coupler {

class TwoHosts {
 public:
  // Why they cannot be created; "" if they can.
  static std::string why_not();

  TwoHosts();  // fails the test if `ip` fails
  ~TwoHosts();
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;

  static constexpr const char* kInterface = "wire";
  // A host's address on the wire; the same in every test, since the wire is private.
  static std::string address(int host) { return host == 0 ? "10.77.0.1" : "10.77.0.2"; }
  const std::string& name(int host) const { return names_[static_cast<size_t>(host)]; }

  // The ids of the processes on a host, one per line.
  std::string processes(int host) const;

  // After this the hosts cannot reach each other.
  void cut_wire() const;

  // Lets the wire carry 1 Gbit/s, each packet 1 ms later if the kernel can do that. Why it cannot,
  // "" if it does.
  std::string slow_wire() const;

  // Writes a program that Open MPI uses instead of ssh. It is called with a host (never the first
  // one) and a command. Returns its path.
  std::string write_agent(const std::string& folder) const;

  // Runs a shell command on each host at the same time; returns their output and exit codes.
  struct Result {
    std::array<std::string, 2> output;
    std::array<int, 2> code{};
  };
  Result run(const std::string& on_first, const std::string& on_second) const;

 private:
  std::array<std::string, 2> names_;
};

}  // namespace coupler
