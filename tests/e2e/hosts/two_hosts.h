// TwoHosts: two network namespaces, "host" 0 and 1, joined by a wire of their own, in which a test
// runs programs as on two machines. Made and removed by the object; needs root and `ip`. Not for
// several threads, but for cut_wire() while run() runs.
#pragma once

#include <array>
#include <string>

namespace coupler {

class TwoHosts {
 public:
  // Why there can be none; "": they can be made.
  static std::string why_not();

  TwoHosts();  // fails the test where `ip` does
  ~TwoHosts();
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;

  static constexpr const char* kInterface = "wire";
  // Of a host on the wire; the same in every test, since nobody else is on it.
  static std::string address(int host) { return host == 0 ? "10.77.0.1" : "10.77.0.2"; }
  const std::string& name(int host) const { return names_[static_cast<size_t>(host)]; }

  // The ids of those that run on a host, one a line.
  std::string processes(int host) const;

  // The hosts do not reach each other any more.
  void cut_wire() const;

  // A program for Open MPI in the place of ssh, which it calls with a host (never the first one)
  // and a command.
  std::string write_agent(const std::string& folder) const;

  // Runs a shell command on each host at the same time; what they printed, and their exit codes.
  struct Result {
    std::array<std::string, 2> output;
    std::array<int, 2> code{};
  };
  Result run(const std::string& on_first, const std::string& on_second) const;

 private:
  std::array<std::string, 2> names_;
};

}  // namespace coupler
