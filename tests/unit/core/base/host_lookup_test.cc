// Resolving a host's name, and how long to wait for a pod's.
#include <gtest/gtest.h>
#include <stdlib.h>

#include "base/network.h"

namespace coupler {
namespace {

using namespace std::chrono_literals;

constexpr const char* kNoHost = "no-such-host.invalid";

TEST(HostLookup, AddressOrName_IsFound_WithThePort) {
  const auto found = look_up_host("127.0.0.1", 80, deadline_after(0s));
  ASSERT_TRUE(found.list);
  EXPECT_EQ(numeric_address(found.list->ai_addr), "127.0.0.1");
  EXPECT_EQ(ntohs(reinterpret_cast<const sockaddr_in*>(found.list->ai_addr)->sin_port), 80);
  EXPECT_TRUE(look_up_host("localhost", 80, deadline_after(30s)).list);
}

TEST(HostLookup, NameOfNobody_IsSaidAtOnce_InAPodAtTheDeadline) {
  const auto begin = std::chrono::steady_clock::now();
  const auto found = look_up_host(kNoHost, 80, deadline_after(1h));
  EXPECT_FALSE(found.list);
  EXPECT_FALSE(found.failure.empty());
  ::setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1", 1);
  const auto deadline = deadline_after(700ms);
  EXPECT_FALSE(look_up_host(kNoHost, 80, deadline).list);
  EXPECT_GE(std::chrono::steady_clock::now(), begin + 500ms);
  ::unsetenv("KUBERNETES_SERVICE_HOST");
}

}  // namespace
}  // namespace coupler
