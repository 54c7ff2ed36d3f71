// An attacker between a member and the store who forwards frames at will: the only possible effect
// is the end of that connection, and the member learns of it.
#include <coupler/error.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "relay.h"
#include "store/client.h"
#include "store/server.h"

namespace coupler::store {
namespace {

using namespace std::chrono_literals;
using Frames = std::vector<std::string>;

class StoreTamperingTest : public ::testing::Test {
 protected:
  // Two additions by a member through the relay; "" or the member's error.
  std::string add_twice(Relay::Rule to_server, Relay::Rule to_client) {
    Relay relay(server_.port(), std::move(to_server), std::move(to_client));
    relay_ = &relay;
    try {
      StoreClient client("127.0.0.1", relay.port(), secret_, 5s);
      client.add("sum", 1);
      client.add("sum", 1);
      client.add("sum", 0);  // detects a surplus reply at the latest
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
      return error.what();
    }
    return "";
  }
  int64_t sum() { return StoreClient("127.0.0.1", server_.port(), secret_, 20s).add("sum", 0); }

  const Bytes32 secret_ = random_bytes32();
  StoreServer server_{secret_};
  Relay* relay_ = nullptr;  // while it is alive
};

TEST_F(StoreTamperingTest, NothingDone_PassesWhole) {
  EXPECT_EQ(add_twice(nullptr, nullptr), "");
  EXPECT_EQ(sum(), 2);
}

TEST_F(StoreTamperingTest, RequestRepeated_IsRefused_AndHasNoEffect) {
  const auto error = add_twice(
      [](int number, const std::string& frame) {
        return number == 0 ? Frames{frame, frame} : Frames{frame};
      },
      nullptr);
  EXPECT_NE(error.find("closed"), std::string::npos) << error;
  EXPECT_EQ(sum(), 1);
}

TEST_F(StoreTamperingTest, RequestLeftOut_EndsTheConnectionWithTheNext) {
  Relay relay(
      server_.port(),
      [](int number, const std::string& frame) { return number == 0 ? Frames{} : Frames{frame}; },
      nullptr);
  StoreClient client("127.0.0.1", relay.port(), secret_, 200ms);
  EXPECT_THROW(client.add("sum", 1), Error);  // never answered
  try {
    client.add("sum", 1);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kPeerLost) << error.what();
  }
  EXPECT_EQ(sum(), 0);
}

TEST_F(StoreTamperingTest, RequestTruncated_IsRefused_AndHasNoEffect) {
  for (const size_t cut : {1U, 31U, 32U, 33U}) {
    const auto error = add_twice(
        [&](int, const std::string& frame) {
          // With a matching length: otherwise the next bytes would complete the frame.
          auto shorter = frame.substr(0, frame.size() - cut);
          shorter[0] = static_cast<char>(shorter[0] - static_cast<char>(cut));
          return Frames{shorter};
        },
        nullptr);
    EXPECT_NE(error, "") << cut;
  }
  EXPECT_EQ(sum(), 0);
}

TEST_F(StoreTamperingTest, RequestAltered_IsRefused_AndHasNoEffect) {
  for (const size_t place : {4U, 5U, 13U, 20U, 40U, 60U}) {
    const auto error = add_twice(
        [&](int, const std::string& frame) {
          auto altered = frame;
          altered[place % altered.size()] ^= 1;
          return Frames{altered};
        },
        nullptr);
    EXPECT_NE(error, "") << place;
  }
  EXPECT_EQ(sum(), 0);
}

TEST_F(StoreTamperingTest, OwnRequestReflected_IsNoReply) {
  const auto error = add_twice(
      [&](int, const std::string& frame) {
        relay_->say_to_client(frame);
        return Frames{};
      },
      nullptr);
  EXPECT_NE(error.find("not authentic"), std::string::npos) << error;
  EXPECT_EQ(sum(), 0);
}

TEST_F(StoreTamperingTest, ReplyReflectedToTheServer_IsNoRequest) {
  std::string first;
  const auto error = add_twice(
      [&](int number, const std::string& frame) {
        return number == 0 ? Frames{frame} : Frames{first};
      },
      [&](int number, const std::string& frame) {
        if (number == 0) {
          first = frame;
        }
        return Frames{frame};
      });
  EXPECT_NE(error, "");
  EXPECT_EQ(sum(), 1);
}

TEST_F(StoreTamperingTest, ReplyRepeatedReorderedOrAltered_IsRefusedByTheMember) {
  std::string first;
  EXPECT_NE(add_twice(nullptr,
                      [](int, const std::string& frame) {
                        return Frames{frame, frame};
                      })
                .find("not authentic"),
            std::string::npos);
  EXPECT_NE(add_twice(nullptr,
                      [&](int number, const std::string& frame) {
                        if (number == 0) {
                          first = frame;
                          return Frames{frame};
                        }
                        return Frames{first};  // the old answer to a new question
                      })
                .find("not authentic"),
            std::string::npos);
  EXPECT_NE(add_twice(nullptr,
                      [](int, const std::string& frame) {
                        auto altered = frame;
                        altered.back() ^= 1;
                        return Frames{altered};
                      })
                .find("not authentic"),
            std::string::npos);
}

TEST_F(StoreTamperingTest, FramesSwapped_AreRefused_AndHaveNoEffect) {
  // Two requests are in flight at once: a get that waits, and an addition.
  std::string held;
  Relay relay(
      server_.port(),
      [&](int number, const std::string& frame) {
        if (number == 0) {
          held = frame;
          return Frames{};
        }
        return number == 1 ? Frames{frame, held} : Frames{frame};
      },
      nullptr);
  StoreClient client("127.0.0.1", relay.port(), secret_, 5s);
  std::thread waiting([&] { EXPECT_THROW(client.get("never", 20s), Error); });
  std::this_thread::sleep_for(50ms);
  EXPECT_THROW(client.add("sum", 1), Error);
  waiting.join();
  EXPECT_EQ(sum(), 0);
}

}  // namespace
}  // namespace coupler::store
