// StoreServer and StoreClient together.
#include "store/store.h"

#include <coupler/error.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "store/client.h"
#include "store/server.h"

namespace coupler::store {
namespace {

using namespace std::chrono_literals;

// Over TCP, and over a Unix socket.
class StoreTest : public ::testing::TestWithParam<const char*> {
 protected:
  void serve(StoreServerOptions options = {}) {
    options.host = GetParam();
    server_ = std::make_unique<StoreServer>(secret_, options);
  }
  std::unique_ptr<StoreClient> join(std::chrono::nanoseconds timeout = 20s) {
    return std::make_unique<StoreClient>(server_->host(), server_->port(), secret_, timeout);
  }
  // As it appears in messages.
  std::string address() const {
    return server_->port() == 0 ? server_->host() : "127.0.0.1:" + std::to_string(server_->port());
  }

  const Bytes32 secret_ = random_bytes32();
  std::unique_ptr<StoreServer> server_;
};

template <typename Call>
ErrorCode code_of(Call call, std::string* text = nullptr) {
  try {
    call();
  } catch (const Error& error) {
    if (text != nullptr) {
      *text = error.what();
    }
    return error.code();
  }
  ADD_FAILURE() << "no error";
  return ErrorCode::kInternal;
}

TEST_P(StoreTest, Set_ThenGetByAnother_ReturnsTheValue) {
  serve();
  const auto a = join();
  const auto b = join();
  const std::string value("\0binary\xff", 8);
  a->set("key", value);
  EXPECT_EQ(b->get("key", 20s), value);
  a->set("key", "new");
  EXPECT_EQ(b->get("key", 0s), "new");
  a->set("empty", "");
  EXPECT_EQ(b->get("empty", 0s), "");
}

TEST_P(StoreTest, Get_OfAMissingKey_AsksOnceOrWaits) {
  serve();
  const auto client = join();
  EXPECT_EQ(client->get("missing", 0s), std::nullopt);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(client->get("missing", 50ms), std::nullopt);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 50ms);
  client->set("missing", "there");  // the canceled wait has no effect
  EXPECT_EQ(client->get("missing", 0s), "there");
}

TEST_P(StoreTest, Get_WhileAnotherSets_ReturnsAsSoonAsItIsSet) {
  serve();
  const auto waiting = join();
  const auto setting = join();
  std::thread setter([&] {
    std::this_thread::sleep_for(30ms);
    setting->set("later", "now");
  });
  EXPECT_EQ(waiting->get("later", 20s), "now");
  setter.join();
}

TEST_P(StoreTest, Get_ThatWaits_BlocksItsCallerOnly) {
  serve();
  const auto client = join();
  std::thread waiting([&] { EXPECT_EQ(client->get("later", 20s), "x"); });
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(client->add("count", 1), i + 1);
  }
  client->set("later", "x");
  waiting.join();
}

TEST_P(StoreTest, Add_ByManyThreadsAndClients_LosesNothing) {
  serve();
  const auto a = join();
  const auto b = join();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int k = 0; k < 200; ++k) {
        (i % 2 == 0 ? a : b)->add("sum", i + 1);
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(a->add("sum", 0), 200 * (1 + 2 + 3 + 4));
  EXPECT_EQ(a->get("sum", 0s), std::nullopt);  // counters are separate from values
}

TEST_P(StoreTest, ManyClients_MeetAtOnce_AllSeeAll) {
  serve();
  constexpr int kRanks = 16;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto client = join();
      client->set(std::to_string(rank), std::string(1000, static_cast<char>('a' + rank)));
      for (int other = 0; other < kRanks; ++other) {
        EXPECT_EQ(client->get(std::to_string(other), 20s),
                  std::string(1000, static_cast<char>('a' + other)));
      }
    });
  }
  for (auto& rank : ranks) {
    rank.join();
  }
}

TEST_P(StoreTest, LargestValue_PassesAndLarger_IsRefusedByName) {
  serve();
  const auto client = join();
  const std::string largest(8u << 20, 'v');
  client->set("large", largest);
  EXPECT_EQ(client->get("large", 20s), largest);
  std::string text;
  EXPECT_EQ(code_of([&] { client->set("larger", largest + "v"); }, &text),
            ErrorCode::kInvalidArgument);
  EXPECT_NE(text.find("8388609"), std::string::npos) << text;
  EXPECT_EQ(code_of([&] { client->set(std::string(1025, 'k'), ""); }), ErrorCode::kInvalidArgument);
  client->set(std::string(1024, 'k'), "fits");
  EXPECT_EQ(client->get("large", 0s)->size(), largest.size());
}

TEST_P(StoreTest, FullStore_RefusesNewKeys_AndServesOn) {
  StoreServerOptions options;
  options.limits.keys = 3;
  options.limits.bytes = 1000;
  serve(options);
  const auto client = join();
  client->set("a", "1");
  client->set("b", "1");
  client->add("c", 1);
  std::string text;
  EXPECT_EQ(code_of([&] { client->set("d", "1"); }, &text), ErrorCode::kInvalidArgument);
  EXPECT_NE(text.find("full"), std::string::npos) << text;
  EXPECT_EQ(code_of([&] { client->add("d", 1); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([&] { client->set("a", std::string(2000, 'x')); }),
            ErrorCode::kInvalidArgument);
  client->set("a", "2");
  EXPECT_EQ(client->get("a", 0s), "2");
}

TEST_P(StoreTest, ServersEnd_FailsPendingAndLaterCalls_NamingTheAddress) {
  serve();
  const auto client = join();
  const auto address = this->address();
  std::thread waiting([&] {
    std::string text;
    EXPECT_EQ(code_of([&] { client->get("never", 60s); }, &text), ErrorCode::kPeerLost);
    EXPECT_NE(text.find(address), std::string::npos) << text;
  });
  std::this_thread::sleep_for(30ms);
  server_.reset();
  waiting.join();
  EXPECT_EQ(code_of([&] { client->set("key", "value"); }), ErrorCode::kPeerLost);
  EXPECT_EQ(code_of([&] { client->add("key", 1); }), ErrorCode::kPeerLost);
}

TEST_P(StoreTest, NobodyListening_IsAnErrorAtOnce_NamingTheAddress) {
  serve();
  const auto address = this->address();
  const auto host = server_->host();
  const int port = server_->port();
  server_.reset();
  std::string text;
  EXPECT_EQ(code_of([&] { StoreClient(host, port, secret_, 20s); }, &text), ErrorCode::kPeerLost);
  EXPECT_NE(text.find(address), std::string::npos) << text;
}

TEST(StoreServerTest, PortInUse_IsAnErrorNamingIt_WithAHint) {
  const StoreServer server(Bytes32{});
  StoreServerOptions options;
  options.port = server.port();
  std::string text;
  EXPECT_EQ(code_of([&] { StoreServer(Bytes32{}, options); }, &text), ErrorCode::kIo);
  EXPECT_NE(text.find(":" + std::to_string(options.port)), std::string::npos) << text;
  EXPECT_NE(text.find("in use"), std::string::npos) << text;
  EXPECT_NE(text.find("ss -ltnp"), std::string::npos) << text;
}

TEST(StoreServerTest, ForeignAddress_IsAnErrorNamingIt) {
  StoreServerOptions options;
  options.host = "somewhere";
  EXPECT_EQ(code_of([&] { StoreServer(Bytes32{}, options); }), ErrorCode::kIo);
  options.host = "192.0.2.1";  // unused: a documentation address
  EXPECT_EQ(code_of([&] { StoreServer(Bytes32{}, options); }), ErrorCode::kIo);
}

TEST_P(StoreTest, Observer_SeesEverySet) {
  std::vector<std::string> seen;
  StoreServerOptions options;
  options.on_set = [&](const std::string& key, const std::string& value) {
    seen.push_back(key + "=" + value);
  };
  serve(options);
  join()->set("a", "1");
  join()->set("b", "2");
  server_.reset();
  EXPECT_EQ(seen, (std::vector<std::string>{"a=1", "b=2"}));
}

// A rank may exit as soon as it has its answer: its report must not arrive after that.
TEST_P(StoreTest, Observer_SeesASet_BeforeItsCallerGoesOn) {
  std::atomic<int> seen{0};
  StoreServerOptions options;
  options.on_set = [&](const std::string&, const std::string&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ++seen;
  };
  serve(options);
  const auto client = join();
  for (int i = 1; i <= 20; ++i) {
    client->set("key", std::to_string(i));
    ASSERT_EQ(seen.load(), i);
  }
}

INSTANTIATE_TEST_SUITE_P(Sockets, StoreTest,
                         ::testing::Values("127.0.0.1", StoreServerOptions::kUnnamed),
                         [](const auto& row) {
                           return std::string(row.index == 0 ? "tcp" : "unix");
                         });

}  // namespace
}  // namespace coupler::store
