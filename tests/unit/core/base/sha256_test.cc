// What is computed from secrets, and until when.
#include "base/sha256.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

namespace coupler {
namespace {

// What atexit() is given first is called last, after what OpenSSL would register.
TEST(Sha256DeathTest, Hmac_WorksUntilTheProcessEnds) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";  // a child that has not used OpenSSL yet
  EXPECT_EXIT(
      {
        static Bytes32 before;
        std::atexit([] { ::_exit(hmac_sha256({}, "text") == before ? 7 : 1); });
        before = hmac_sha256({}, "text");
        std::exit(2);
      },
      ::testing::ExitedWithCode(7), "");
}

TEST(Sha256, Digest_OfACopyContinues) {
  Digest prefix;
  prefix.update("ab");
  Digest copy(prefix);
  EXPECT_EQ(to_hex(copy.update("c").finish()),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");  // FIPS 180-2, B.1
  EXPECT_EQ(to_hex(prefix.update("c").finish()), to_hex(Digest().update("abc").finish()));
}

}  // namespace
}  // namespace coupler
