#include "base/network.h"

#include <string>

#include "cli/launch/network_job.h"
#include "core/store/loopback_listener.h"
#include "refusal.h"

namespace coupler::cli {
namespace {

TEST(Network, InterfacesNameAndAddress_AreTaken) {
  EXPECT_NO_THROW(check_interface("lo", "--interface"));
  for (const auto& entry : network_addresses()) {
    EXPECT_NO_THROW(check_interface(entry.address, "--interface")) << entry.address;
  }
}

TEST(Network, InterfaceOrAddressThatIsNotThere_IsRefused_NamingThoseThatAre) {
  const auto name = refusal([] { check_interface("lo0", "train.toml:3:1"); });
  EXPECT_SAYS(name, "'lo0'");
  EXPECT_SAYS(name, "train.toml:3:1");
  EXPECT_SAYS(name, "did you mean 'lo'?");
  EXPECT_SAYS(name, "--interface");
  const auto address = refusal([] { check_interface("192.0.2.1", "train.toml:3:1"); });
  EXPECT_SAYS(address, "'192.0.2.1'");
  EXPECT_SAYS(address, "lo (127.0.0.1)");
}

TEST(Network, AddressOfAllInterfaces_IsNoneToConnectThrough) {
  for (const char* all : {"0.0.0.0", "::"}) {
    const auto text = refusal([&] { check_interface(all, "-o backend.interface"); });
    EXPECT_SAYS(text, std::string("'") + all + "' means all network interfaces");
    EXPECT_SAYS(text, "-o backend.interface");
  }
}

TEST(Network, PortThatIsTaken_IsRefused_ThenFree_IsFine) {
  store::LoopbackListener taken;
  const auto text = refusal([&] { check_own_address_and_port("127.0.0.1", taken.port); });
  EXPECT_SAYS(text, std::to_string(taken.port));
  EXPECT_SAYS(text, "already in use");
  EXPECT_SAYS(text, "--main-port");
  taken.fd.reset();
  EXPECT_NO_THROW(check_own_address_and_port("127.0.0.1", taken.port));
}

TEST(Network, AddressOfAnotherMachine_OrOfNone_IsRefused) {
  EXPECT_SAYS(refusal([] { check_own_address_and_port("192.0.2.1", 29500); }),
              "not an address of this machine");
  EXPECT_SAYS(refusal([] { check_own_address_and_port("no-such-host.invalid", 29500); }),
              "unknown host 'no-such-host.invalid'");
}

}  // namespace
}  // namespace coupler::cli
