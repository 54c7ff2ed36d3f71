// Strangers that contact the store: they learn nothing, change nothing, and disturb no one.
#include <coupler/error.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/socket.h"
#include "loopback_listener.h"
#include "store/client.h"
#include "store/server.h"
#include "store/wire.h"

namespace coupler::store {
namespace {

using namespace std::chrono_literals;

class StoreStrangerTest : public ::testing::Test {
 protected:
  StoreStrangerTest() {
    StoreServerOptions options;
    options.handshake_timeout = 200ms;
    server_ = std::make_unique<StoreServer>(secret_, options);
    member_ = std::make_unique<StoreClient>("127.0.0.1", server_->port(), secret_, 20s);
    member_->set("key", "value");
  }
  ~StoreStrangerTest() override {
    // Whatever the stranger did, the job continues.
    EXPECT_EQ(member_->get("key", 0s), "value");
    EXPECT_EQ(member_->get("stranger", 0s), std::nullopt);
    EXPECT_EQ(StoreClient("127.0.0.1", server_->port(), secret_, 20s).add("count", 1), 1);
  }

  UniqueFd connect() const {
    return connect_tcp("127.0.0.1", server_->port(), deadline_after(20s), false);
  }
  // Whether the server closes the connection (after its greeting) in time.
  static bool is_closed(const UniqueFd& stranger, std::chrono::nanoseconds timeout) {
    char byte = 0;
    const auto deadline = deadline_after(timeout);
    IoResult result = IoResult::kOk;
    while (result == IoResult::kOk) {
      result = receive_all(stranger.get(), &byte, 1, deadline);
    }
    return result == IoResult::kClosed;
  }

  const Bytes32 secret_ = random_bytes32();
  std::unique_ptr<StoreServer> server_;
  std::unique_ptr<StoreClient> member_;
};

TEST_F(StoreStrangerTest, WrongSecret_IsRefused_BothSay) {
  try {
    StoreClient("127.0.0.1", server_->port(), random_bytes32(), 20s).set("stranger", "was here");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
    EXPECT_NE(std::string(error.what()).find("secret"), std::string::npos) << error.what();
  }
  EXPECT_EQ(server_->clients(), 1U);
}

TEST_F(StoreStrangerTest, Silence_IsEndedAfterTheHandshakeTimeout) {
  const auto stranger = connect();
  EXPECT_TRUE(is_closed(stranger, 2s));
}

TEST_F(StoreStrangerTest, AByteNowAndThen_BuysNoTime) {
  const auto stranger = connect();
  const auto deadline = std::chrono::steady_clock::now() + 10s;
  bool open = true;
  for (int i = 0; open && i < 63 && std::chrono::steady_clock::now() < deadline; ++i) {
    open = send_all(stranger.get(), "x", 1, deadline_after(1s)) == IoResult::kOk;
    std::this_thread::sleep_for(20ms);
  }
  EXPECT_FALSE(open);  // 63 bytes are not a proof: only the deadline ends this
}

TEST_F(StoreStrangerTest, MembersFrameThatAnnouncesTooMuch_EndsThatConnectionOnly) {
  const auto socket = connect();
  std::array<uint8_t, store_wire::kHelloSize> hello{};
  ASSERT_EQ(receive_all(socket.get(), hello.data(), hello.size(), deadline_after(20s)),
            IoResult::kOk);
  Bytes32 nonce{};
  std::memcpy(nonce.data(), hello.data() + 8, nonce.size());
  const Bytes32 mine = random_bytes32();
  const auto proof = store_wire::proof(secret_, store_wire::Side::kClient, nonce, mine);
  std::string message(reinterpret_cast<const char*>(mine.data()), mine.size());
  message.append(reinterpret_cast<const char*>(proof.data()), proof.size());
  const uint32_t length = store_wire::kMaxFrame + 1;
  message.append(reinterpret_cast<const char*>(&length), sizeof length);
  send_all(socket.get(), message.data(), message.size(), deadline_after(1s));
  EXPECT_TRUE(is_closed(socket, 5s));
}

TEST_F(StoreStrangerTest, Garbage_IsDropped) {
  std::mt19937 random(11);
  for (int i = 0; i < 50; ++i) {
    const auto stranger = connect();
    std::string text(random() % 4096, '\0');
    for (char& c : text) {
      c = static_cast<char>(random());
    }
    send_all(stranger.get(), text.data(), text.size(), deadline_after(1s));
    EXPECT_TRUE(is_closed(stranger, 2s));
  }
}

TEST_F(StoreStrangerTest, ReplayOfAMembersProof_IsRefused) {
  // A proof answers one nonce; it is worthless on another connection.
  const auto first = connect();
  std::array<uint8_t, store_wire::kHelloSize> hello{};
  ASSERT_EQ(receive_all(first.get(), hello.data(), hello.size(), deadline_after(20s)),
            IoResult::kOk);
  Bytes32 nonce{};
  std::memcpy(nonce.data(), hello.data() + 8, nonce.size());
  const Bytes32 mine = random_bytes32();
  const auto proof = store_wire::proof(secret_, store_wire::Side::kClient, nonce, mine);
  std::string message(reinterpret_cast<const char*>(mine.data()), mine.size());
  message.append(reinterpret_cast<const char*>(proof.data()), proof.size());
  const auto second = connect();
  send_all(second.get(), message.data(), message.size(), deadline_after(1s));
  EXPECT_TRUE(is_closed(second, 2s));
  EXPECT_EQ(server_->clients(), 1U);
}

TEST_F(StoreStrangerTest, MembersFrameWithWrongMac_EndsThatConnectionOnly) {
  const auto socket = connect();
  std::array<uint8_t, store_wire::kHelloSize> hello{};
  ASSERT_EQ(receive_all(socket.get(), hello.data(), hello.size(), deadline_after(20s)),
            IoResult::kOk);
  Bytes32 nonce{};
  std::memcpy(nonce.data(), hello.data() + 8, nonce.size());
  const Bytes32 mine = random_bytes32();
  const auto proof = store_wire::proof(secret_, store_wire::Side::kClient, nonce, mine);
  std::string message(reinterpret_cast<const char*>(mine.data()), mine.size());
  message.append(reinterpret_cast<const char*>(proof.data()), proof.size());
  store_wire::FrameSealer sealer(random_bytes32());  // not the key of this connection
  message += sealer.seal(store_wire::encode(
      store_wire::Request{.operation = store_wire::Operation::kSet, .key = "stranger"}));
  send_all(socket.get(), message.data(), message.size(), deadline_after(1s));
  EXPECT_TRUE(is_closed(socket, 2s));
}

TEST_F(StoreStrangerTest, MoreIdleConnectionsThanMayBe_KeepNobodyOut_TheOldestGoesFirst) {
  StoreServerOptions options;
  options.limits.unauthenticated = 20;
  options.handshake_timeout = 60s;  // long, so that it does not end them
  member_ = nullptr;
  server_ = nullptr;
  server_ = std::make_unique<StoreServer>(secret_, options);
  member_ = std::make_unique<StoreClient>("127.0.0.1", server_->port(), secret_, 20s);
  member_->set("key", "value");
  std::vector<UniqueFd> idle;
  for (int i = 0; i < 200; ++i) {
    idle.push_back(connect());
  }
  StoreClient late("127.0.0.1", server_->port(), secret_, 20s);
  late.set("late", "in");
  EXPECT_EQ(member_->get("late", 20s), "in");
  EXPECT_TRUE(is_closed(idle.front(), 5s));
  EXPECT_FALSE(is_closed(idle.back(), 50ms));
}

TEST(StoreClient, ServerThatIsNoStore_IsAnErrorInTime_NamingTheAddress) {
  // A listener that never answers: the deadline ends the wait.
  const LoopbackListener listener;
  try {
    const StoreClient client("127.0.0.1", listener.port, random_bytes32(), 100ms);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kTimeout);
    EXPECT_NE(std::string(error.what()).find(std::to_string(listener.port)), std::string::npos);
  }
}

}  // namespace
}  // namespace coupler::store
