// The store under TLS 1.3 with the job's secret as pre-shared key.
#include <coupler/error.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/socket.h"
#include "loopback_listener.h"
#include "store/client.h"
#include "store/link.h"
#include "store/server.h"
#include "store/wire.h"

namespace coupler::store {
namespace {

using namespace std::chrono_literals;

// Forwards bytes between one client and a server, and records them.
class Ear {
 public:
  explicit Ear(int server_port) {
    thread_ = std::thread([this, server_port] {
      const UniqueFd client = listener_.accept();
      const auto server = connect_tcp("127.0.0.1", server_port, deadline_after(5s), false);
      std::thread back([&] { pass(server.get(), client.get(), from_server_); });
      pass(client.get(), server.get(), from_client_);
      back.join();
    });
  }
  int port() const { return listener_.port; }
  // Call after the client is gone.
  std::string heard() {
    thread_.join();
    return from_client_ + from_server_;
  }

 private:
  static void pass(int from, int to, std::string& heard) {
    char bytes[4096];
    size_t got = 0;
    while (receive_some(from, bytes, sizeof bytes, deadline_after(20s), got) == IoResult::kOk) {
      heard.append(bytes, got);
      send_all(to, bytes, got, deadline_after(5s));
    }
    ::shutdown(to, SHUT_RDWR);
  }

  LoopbackListener listener_;
  std::string from_client_, from_server_;
  std::thread thread_;
};

class StoreTlsTest : public ::testing::Test {
 protected:
  std::unique_ptr<StoreClient> join(int port, bool tls = true) const {
    return std::make_unique<StoreClient>("127.0.0.1", port, secret_, 20s, tls);
  }
  std::unique_ptr<StoreClient> join() const { return join(server_.port()); }

  const Bytes32 secret_ = random_bytes32();
  const StoreServer server_{secret_, {.tls = true, .handshake_timeout = 500ms}};
};

TEST_F(StoreTlsTest, Members_MeetAsWithout) {
  const auto a = join();
  const auto b = join();
  const std::string large(5u << 20, 'v');  // many records
  std::thread setting([&] {
    std::this_thread::sleep_for(20ms);
    a->set("rank/0", large);
    a->set("rank/1", "one");
  });
  const auto values = b->get_ranks("rank", 2, 20s);
  setting.join();
  EXPECT_EQ(values[0], large);
  EXPECT_EQ(values[1], "one");
  EXPECT_EQ(b->add("n", 2), 2);
  EXPECT_EQ(a->get("missing", 20ms), std::nullopt);
}

TEST_F(StoreTlsTest, ThreadsThatShareAClient_DoNotDisturbEachOther) {
  const auto client = join();
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      const auto key = std::to_string(thread);
      for (int i = 0; i < 50; ++i) {
        const std::string value(static_cast<size_t>(i) * 997, static_cast<char>('a' + thread));
        client->set(key, value);
        ASSERT_EQ(client->get(key, 20s), value);
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
}

TEST_F(StoreTlsTest, WhatIsSaid_IsReadByNobodyBetween) {
  const std::string text = "a string that is easily found";
  for (const bool tls : {true, false}) {
    const StoreServer server(secret_, {.tls = tls});
    Ear ear(server.port());
    {
      const auto client = join(ear.port(), tls);
      client->set("the key itself", text);
      EXPECT_EQ(client->get("the key itself", 20s), text);
    }
    const auto heard = ear.heard();
    EXPECT_EQ(heard.find(text) == std::string::npos, tls);
    EXPECT_EQ(heard.find("the key itself") == std::string::npos, tls);
  }
}

TEST_F(StoreTlsTest, AnotherSecret_IsRefused_WithTheReason) {
  try {
    StoreClient("127.0.0.1", server_.port(), random_bytes32(), 20s, true).set("x", "y");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
    EXPECT_NE(std::string(error.what()).find("secret"), std::string::npos) << error.what();
  }
  join()->set("key", "value");
}

TEST_F(StoreTlsTest, OneSideWithoutTls_IsAnError_OnEitherSide) {
  EXPECT_THROW(StoreClient("127.0.0.1", server_.port(), secret_, 1s, false), Error);
  const StoreServer plain(secret_, {.tls = false, .handshake_timeout = 200ms});
  try {
    StoreClient("127.0.0.1", plain.port(), secret_, 20s, true);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("TLS"), std::string::npos) << error.what();
  }
  EXPECT_EQ(server_.clients() + plain.clients(), 0U);
}

TEST_F(StoreTlsTest, StrangersWithCertificatesOlderVersionsOrNoKey_GetNoAnswer) {
  struct Case {
    const char* name;
    void (*prepare)(SSL_CTX*);
  };
  const Case cases[] = {
      {"TLS 1.3 without a key", [](SSL_CTX*) {}},
      {"TLS 1.2", [](SSL_CTX* context) { SSL_CTX_set_max_proto_version(context, TLS1_2_VERSION); }},
  };
  for (const auto& stranger : cases) {
    SCOPED_TRACE(stranger.name);
    const std::unique_ptr<SSL_CTX, decltype(&::SSL_CTX_free)> context(
        ::SSL_CTX_new(::TLS_client_method()), &::SSL_CTX_free);
    stranger.prepare(context.get());
    const auto fd = connect_tcp("127.0.0.1", server_.port(), deadline_after(20s), false);
    const std::unique_ptr<SSL, decltype(&::SSL_free)> ssl(::SSL_new(context.get()), &::SSL_free);
    ::SSL_set_fd(ssl.get(), fd.get());
    int done = 0;
    // The socket is non-blocking: read until the server's alert or the end of the connection.
    const auto deadline = std::chrono::steady_clock::now() + 10s;
    do {
      done = ::SSL_connect(ssl.get());
      std::this_thread::sleep_for(1ms);
    } while (done != 1 && ::SSL_get_error(ssl.get(), done) == SSL_ERROR_WANT_READ &&
             std::chrono::steady_clock::now() < deadline);
    EXPECT_NE(done, 1);
    EXPECT_NE(::SSL_get_error(ssl.get(), done), SSL_ERROR_WANT_READ) << "no answer";
  }
  EXPECT_EQ(server_.clients(), 0U);
}

TEST_F(StoreTlsTest, SilenceAndGarbage_EndWithTheHandshakesDeadline) {
  const auto silent = connect_tcp("127.0.0.1", server_.port(), deadline_after(20s), false);
  const auto loud = connect_tcp("127.0.0.1", server_.port(), deadline_after(20s), false);
  const std::string garbage(5000, '\x16');
  send_all(loud.get(), garbage.data(), garbage.size(), deadline_after(1s));
  for (const int fd : {silent.get(), loud.get()}) {
    char bytes[4096];
    size_t got = 0;
    IoResult result = IoResult::kOk;
    while (result == IoResult::kOk) {
      result = receive_some(fd, bytes, sizeof bytes, deadline_after(10s), got);
    }
    EXPECT_EQ(result, IoResult::kClosed);
  }
  join()->set("key", "value");
}

TEST(DeriveKey, Purposes_GiveKeysOfTheirOwn) {
  const Bytes32 secret = random_bytes32();
  EXPECT_EQ(derive_key(secret, "a"), derive_key(secret, "a"));
  EXPECT_NE(derive_key(secret, "a"), derive_key(secret, "b"));
  EXPECT_NE(derive_key(secret, "a"), derive_key(random_bytes32(), "a"));
  EXPECT_NE(derive_key(secret, "a"), secret);
}

}  // namespace
}  // namespace coupler::store
