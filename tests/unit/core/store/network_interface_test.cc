// Where the store listens: loopback, or a named interface or address, or all if requested.
#include <coupler/error.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/log.h"
#include "base/network.h"
#include "store/client.h"
#include "store/server.h"

namespace coupler::store {
namespace {

using namespace std::chrono_literals;

template <typename Call>
std::string refusal_by(Call call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

bool has_ipv6_loopback() {
  const auto all = network_addresses();
  return std::any_of(all.begin(), all.end(), [](const auto& a) { return a.address == "::1"; });
}

void expect_served(const std::string& host, const std::string& connect_to) {
  const Bytes32 secret = random_bytes32();
  const StoreServer server(secret, {.host = host, .all_interfaces = true});
  StoreClient client(connect_to, server.port(), secret, 20s);
  client.set("key", "value");
  EXPECT_EQ(client.get("key", 20s), "value");
}

TEST(BindAddress, Nothing_IsLoopback) { EXPECT_EQ(bind_address(""), "127.0.0.1"); }

TEST(BindAddress, InterfacesName_IsItsAddress) { EXPECT_EQ(bind_address("lo"), "127.0.0.1"); }

TEST(BindAddress, AddressOfThisMachine_IsTaken) {
  EXPECT_EQ(bind_address("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(bind_address("127.0.0.9"), "127.0.0.9");
  for (const auto& entry : network_addresses()) {
    EXPECT_EQ(bind_address(entry.address), entry.address);
  }
  if (has_ipv6_loopback()) {
    EXPECT_EQ(bind_address("0:0::1"), "::1");
  }
}

TEST(BindAddress, UnknownNameOrForeignAddress_IsRefused_ListingWhatThereIs) {
  for (const char* text : {"eth-none", "192.0.2.1", "2001:db8::1", "127.0.0.1.", "lo "}) {
    const auto message = refusal_by([&] { bind_address(text); });
    EXPECT_NE(message.find(std::string("'") + text + "'"), std::string::npos) << message;
    EXPECT_NE(message.find("lo (127.0.0.1)"), std::string::npos) << message;
  }
}

TEST(BindAddress, Refusal_SaysWhatAskedForIt_AndTheNearestName) {
  const auto message = refusal_by([] { bind_address("lo0", "train.toml:3:1"); });
  EXPECT_NE(message.find("(train.toml:3:1); did you mean 'lo'?"), std::string::npos) << message;
}

TEST(OwnAddress, IsEachOfThisMachines_InAnyForm_AndNoName) {
  for (const char* text : {"127.0.0.1", "127.0.0.9", "::1", "0:0::1"}) {
    EXPECT_TRUE(is_own_address(text)) << text;
  }
  for (const auto& entry : network_addresses()) {
    EXPECT_TRUE(is_own_address(entry.address)) << entry.address;
  }
  for (const char* text : {"", "lo", "localhost", "192.0.2.1", "2001:db8::1", "0.0.0.0"}) {
    EXPECT_FALSE(is_own_address(text)) << text;
  }
}

TEST(StoreServer, AllInterfaces_OnlyWhenAskedTo_WithAWarning) {
  for (const char* host : {"0.0.0.0", "::", "0:0::0"}) {
    const auto message = refusal_by([&] { StoreServer(random_bytes32(), {.host = host}); });
    EXPECT_NE(message.find("launch.all_interfaces"), std::string::npos) << message;
    EXPECT_NE(message.find("backend.interface"), std::string::npos) << message;
  }
  ::testing::internal::CaptureStderr();
  expect_served("0.0.0.0", "127.0.0.1");
  const auto log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("all interfaces"), std::string::npos) << log;
}

TEST(StoreServer, OneAddress_IsNotReachedThroughAnother) {
  const Bytes32 secret = random_bytes32();
  const StoreServer server(secret, {.host = "127.0.0.2"});
  EXPECT_THROW(StoreClient("127.0.0.1", server.port(), secret, 1s), Error);
  StoreClient("127.0.0.2", server.port(), secret, 20s).set("key", "value");
}

TEST(StoreServer, Ipv6_ServesToo_AndAllIsBothFamilies) {
  if (!has_ipv6_loopback()) {
    GTEST_SKIP() << "this machine has no ::1";
  }
  expect_served("::1", "::1");
  expect_served("::", "::1");
  expect_served("::", "127.0.0.1");
  const Bytes32 secret = random_bytes32();
  const StoreServer server(secret, {.host = "::1"});
  try {
    StoreServer(secret, {.host = "::1", .port = server.port()});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("[::1]:"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace coupler::store
