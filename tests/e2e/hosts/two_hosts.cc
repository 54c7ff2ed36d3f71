#include "two_hosts.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>

namespace coupler {
namespace {

// Long enough for a loaded machine; a hanging command is killed.
constexpr const char* kLimit = "timeout -k 5 90 ";

int exit_code(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string run_shell(const std::string& command, int& code) {
  std::string output;
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "re");
  if (pipe == nullptr) {
    code = -1;
    return "popen failed";
  }
  char buffer[4096];
  for (size_t size = 0; (size = ::fread(buffer, 1, sizeof buffer, pipe)) > 0;) {
    output.append(buffer, size);
  }
  code = exit_code(::pclose(pipe));
  return output;
}

}  // namespace

std::string TwoHosts::why_not() {
  if (::geteuid() != 0) return "network namespaces need root";
  int code = 0;
  const std::string probe = fmt::format("coupler-probe-{}", ::getpid());
  const auto text = run_shell("ip netns add " + probe + " && ip netns delete " + probe, code);
  return code == 0 ? "" : "network namespaces cannot be created here: " + text;
}

TwoHosts::TwoHosts() {
  for (int host = 0; host < 2; ++host) {
    names_[static_cast<size_t>(host)] = fmt::format("coupler-{}-{}", ::getpid(), host);
  }
  const auto on = [](const std::string& name, const std::string& rest) {
    return fmt::format(" && ip -n {} {}", name, rest);
  };
  std::string command = fmt::format("ip netns add {} && ip netns add {}", name(0), name(1));
  command += on(name(0),
                fmt::format("link add {0} type veth peer name {0} netns {1}", kInterface, name(1)));
  for (int host = 0; host < 2; ++host) {
    command += on(name(host), "link set lo up");
    command += on(name(host), fmt::format("address add {}/24 dev {}", address(host), kInterface));
    command += on(name(host), fmt::format("link set {} up", kInterface));
  }
  int code = 0;
  const auto text = run_shell(command, code);
  EXPECT_EQ(code, 0) << text;
}

TwoHosts::~TwoHosts() {
  int code = 0;
  for (const std::string& host : names_) run_shell("ip netns delete " + host, code);
}

std::string TwoHosts::processes(int host) const {
  int code = 0;
  return run_shell("ip netns pids " + name(host), code);
}

void TwoHosts::cut_wire() const {
  int code = 0;
  const auto text = run_shell(fmt::format("ip -n {} link set {} down", name(0), kInterface), code);
  EXPECT_EQ(code, 0) << text;
}

std::string TwoHosts::slow_wire() const {
  for (const std::string& host : names_) {
    std::string text;
    int code = 1;
    // Some kernels lack netem, and so the delay.
    for (const char* kind :
         {"netem delay 1ms rate 1gbit limit 10000", "tbf rate 1gbit burst 128kb latency 50ms"}) {
      if (code != 0)
        text = run_shell(fmt::format("tc -n {} qdisc add dev {} root {}", host, kInterface, kind),
                         code);
    }
    if (code != 0) return "tc cannot slow a link here: " + text;
  }
  return "";
}

std::string TwoHosts::write_agent(const std::string& folder) const {
  const std::string path = folder + "/agent";
  std::ofstream(path) << fmt::format(
      "#!/bin/sh\nshift\nexec ip netns exec {0} unshare --uts sh -c 'hostname {0}; exec sh -c "
      "\"$1\"' "
      "sh \"$*\"\n",
      name(1));
  ::chmod(path.c_str(), 0700);
  return path;
}

TwoHosts::Result TwoHosts::run(const std::string& on_first, const std::string& on_second) const {
  Result result;
  const auto on = [&](int host, const std::string& command) {
    // Quoted for sh; the commands contain no quotes.
    result.output[static_cast<size_t>(host)] =
        run_shell(fmt::format("{}ip netns exec {} unshare --uts sh -c 'hostname {}; {}'", kLimit,
                              name(host), name(host), command),
                  result.code[static_cast<size_t>(host)]);
  };
  std::thread second([&] { on(1, on_second); });
  on(0, on_first);
  second.join();
  return result;
}

}  // namespace coupler
