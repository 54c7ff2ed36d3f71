// Every proof and every MAC is compared by OpenSSL's CRYPTO_memcmp, over its whole length. A
// separate program, since its CRYPTO_memcmp replaces OpenSSL's.
#include <coupler/error.h>
#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "store/client.h"
#include "store/server.h"

static std::atomic<int> g_compared{0};
static std::atomic<int> g_other_sizes{0};

extern "C" int CRYPTO_memcmp(const void* a, const void* b, size_t size) {
  size == 32 ? ++g_compared : ++g_other_sizes;
  const auto* left = static_cast<const volatile unsigned char*>(a);
  const auto* right = static_cast<const volatile unsigned char*>(b);
  unsigned char difference = 0;
  for (size_t i = 0; i < size; ++i) {
    difference = static_cast<unsigned char>(difference | (left[i] ^ right[i]));
  }
  return difference;
}

namespace coupler::store {
namespace {

using namespace std::chrono_literals;

TEST(ConstantTime, EveryProofAndEveryFrame_IsComparedWhole) {
  const Bytes32 secret = random_bytes32();
  const StoreServer server(secret);
  {
    StoreClient client("127.0.0.1", server.port(), secret, 20s);
    EXPECT_EQ(g_compared, 2);  // each side's proof
    client.set("key", "value");
    EXPECT_EQ(g_compared, 4);  // the request and the reply
  }
  g_compared = 0;
  EXPECT_THROW(StoreClient("127.0.0.1", server.port(), random_bytes32(), 20s), Error);
  EXPECT_EQ(g_compared, 2);  // the client's proof, and the refusal sent instead of one
  EXPECT_EQ(g_other_sizes, 0);
}

TEST(ConstantTime, ADifferenceAnywhere_IsFound) {
  const Bytes32 bytes = random_bytes32();
  EXPECT_TRUE(equal_constant_time(bytes, bytes.data()));
  for (size_t i = 0; i < bytes.size(); ++i) {
    Bytes32 other = bytes;
    other[i] ^= 0x80;
    EXPECT_FALSE(equal_constant_time(bytes, other.data())) << i;
  }
}

}  // namespace
}  // namespace coupler::store
