#include "network.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>

#include "refusal.h"
#include "rendezvous/unique_fd.h"

namespace coupler::cli {
namespace {

// A port of loopback that somebody listens on, or listened on.
struct TakenPort {
  UniqueFd fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  int port = 0;
  TakenPort() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(fd.get(), 1), 0);
    ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size);
    port = ntohs(address.sin_port);
  }
};

TEST(Network, Loopback_IsAnInterface_AndItsAddressesAreOurs) {
  const auto names = interface_names();
  EXPECT_NE(std::find(names.begin(), names.end(), "lo"), names.end());
  EXPECT_NO_THROW(check_interface("lo", "--interface"));
  EXPECT_TRUE(is_own_address("127.0.0.1"));
  EXPECT_FALSE(is_own_address("192.0.2.1"));
  EXPECT_FALSE(is_own_address("localhost"));
}

TEST(Network, InterfaceThatIsNotThere_IsRefused_NamingThoseThatAre) {
  const auto text = refusal([] { check_interface("lo0", "train.toml:3:1"); });
  EXPECT_SAYS(text, "'lo0'");
  EXPECT_SAYS(text, "train.toml:3:1");
  EXPECT_SAYS(text, "did you mean 'lo'?");
  EXPECT_SAYS(text, "--interface");
}

TEST(Network, PortThatIsTaken_IsRefused_ThenFree_IsFine) {
  TakenPort taken;
  const auto text = refusal([&] { check_own_address_and_port("127.0.0.1", taken.port); });
  EXPECT_SAYS(text, std::to_string(taken.port));
  EXPECT_SAYS(text, "already in use");
  EXPECT_SAYS(text, "--main-port");
  taken.fd.reset();
  EXPECT_NO_THROW(check_own_address_and_port("127.0.0.1", taken.port));
}

TEST(Network, AddressOfAnotherMachine_OrOfNone_IsRefused) {
  EXPECT_SAYS(refusal([] { check_own_address_and_port("192.0.2.1", 29500); }),
              "no address of this machine");
  EXPECT_SAYS(refusal([] { check_own_address_and_port("no-such-host.invalid", 29500); }),
              "there is no host 'no-such-host.invalid'");
}

}  // namespace
}  // namespace coupler::cli
