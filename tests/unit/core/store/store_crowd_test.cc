// Thousands of strangers at once, and a server without free descriptors: members are served, late
// ones can still join, and the strangers' resources are bounded.
#include <coupler/error.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/socket.h"
#include "knocking.h"
#include "store/client.h"
#include "store/server.h"

namespace coupler::store {
namespace {

using namespace std::chrono_literals;

rlim_t raise_descriptor_limit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

size_t open_descriptors() {
  return static_cast<size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

// One of a crowd: sends nothing, or something that is not a proof.
UniqueFd knock(const StoreAddress& store, size_t number) {
  UniqueFd fd = connect_without_waiting(store);
  static const std::string kWords[] = {"", "GET / HTTP/1.1\r\n\r\n", std::string(64, 'x'),
                                       std::string(4000, '\xff')};
  const auto& words = kWords[number % 4];
  ::send(fd.get(), words.data(), words.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  return fd;
}

// This many strangers while a member works and others join.
void expect_undisturbed(size_t wanted, bool tls, const char* host) {
  const rlim_t limit = raise_descriptor_limit();
  const size_t crowd = std::min<size_t>(wanted, limit > 4000 ? limit - 2500 : limit / 2);
  std::printf("%zu sockets\n", crowd);
  const Bytes32 secret = random_bytes32();
  const StoreServer server(secret, {.host = host, .tls = tls});
  const StoreAddress address{server.host(), server.port()};
  const auto join = [&] {
    return std::make_unique<StoreClient>(address.host, address.port, secret, 60s, tls);
  };
  const auto member = join();
  member->set("key", "value");
  const size_t before = open_descriptors();

  std::atomic<bool> over{false};
  std::thread working([&] {
    for (int64_t step = 1; !over; ++step) {
      ASSERT_EQ(member->add("steps", 1), step);
      ASSERT_EQ(member->get("key", 0s), "value");
    }
  });
  std::thread coming([&] {
    for (int64_t number = 1; number <= 20 || !over; ++number) {
      ASSERT_EQ(join()->add("came", 1), number);
      std::this_thread::sleep_for(5ms);
    }
  });
  std::vector<UniqueFd> strangers;
  size_t most_held = 0;
  const auto deadline = std::chrono::steady_clock::now() + 60s;
  while (strangers.size() < crowd && std::chrono::steady_clock::now() < deadline) {
    strangers.push_back(knock(address, strangers.size()));
    if (strangers.size() % 500 == 0) {
      const size_t now = open_descriptors();
      most_held = std::max(most_held, now - std::min(now, before + strangers.size()));
    }
  }
  over = true;
  working.join();
  coming.join();
  EXPECT_EQ(strangers.size(), crowd);
  // The server's own limit; strangers that arrive meanwhile add a few.
  EXPECT_LE(most_held, StoreLimits{}.unauthenticated + 50);
  EXPECT_GE(member->add("came", 0), 20);
  // No stranger has joined.
  const auto last = join();
  EXPECT_EQ(last->get("key", 20s), "value");
  // Disconnected strangers may still be being removed.
  while (server.clients() > 2 && std::chrono::steady_clock::now() < deadline + 20s) {
    std::this_thread::sleep_for(5ms);
  }
  EXPECT_EQ(server.clients(), 2U);
}

TEST(StoreCrowd, TenThousandSockets_ChangeNothingForMembers_NorForThoseToCome) {
  expect_undisturbed(10'000, false, "127.0.0.1");
}

TEST(StoreCrowd, ThousandsOfSocketsUnderTls_ChangeNothingEither) {
  expect_undisturbed(3000, true, "127.0.0.1");
}

// Of the same user; others do not get that far: see store_users_test.cc.
TEST(StoreCrowd, ThousandsOfUnixSockets_ChangeNothingEither) {
  expect_undisturbed(3000, false, StoreServerOptions::kUnnamed);
}

// Strangers at a server in its own process, which has hardly any descriptors left.
class StarvedServer {
 public:
  explicit StarvedServer(const Bytes32& secret) {
    int port[2];
    int end[2];
    if (::pipe2(port, O_CLOEXEC) != 0 || ::pipe2(end, O_CLOEXEC) != 0) {
      return;
    }
    end_.reset(end[1]);
    child_ = ::fork();
    if (child_ == 0) {
      end_.reset();
      serve(secret, port[1], end[0]);
      ::_exit(0);
    }
    ::close(port[1]);
    ::close(end[0]);
    (void)!::read(port[0], &port_, sizeof port_);
    ::close(port[0]);
  }
  ~StarvedServer() {
    end_.reset();
    ::waitpid(child_, nullptr, 0);
  }
  StarvedServer(const StarvedServer&) = delete;
  StarvedServer& operator=(const StarvedServer&) = delete;

  int port() const { return port_; }
  // Of all its threads, in clock ticks.
  long processor_time() const {
    std::ifstream file("/proc/" + std::to_string(child_) + "/stat");
    std::string text;
    std::getline(file, text);
    std::istringstream words(text.substr(text.rfind(')') + 2));
    std::string word;
    for (int i = 0; i < 11; ++i) {
      words >> word;
    }
    long user = 0;
    long system = 0;
    words >> user >> system;
    return user + system;
  }

 private:
  static void serve(const Bytes32& secret, int port_pipe, int end_pipe) {
    const StoreServer server(secret);
    // Sixteen are left, fewer than the server's limit allows to strangers.
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = open_descriptors() + 16;
    ::setrlimit(RLIMIT_NOFILE, &limit);
    const int port = server.port();
    (void)!::write(port_pipe, &port, sizeof port);
    char byte = 0;
    (void)!::read(end_pipe, &byte, 1);
  }

  pid_t child_ = -1;
  int port_ = 0;
  UniqueFd end_;
};

TEST(StoreCrowd, NoDescriptorsLeft_AcceptWaitsWithoutSpinning_AndMembersComeIn) {
  const Bytes32 secret = random_bytes32();
  const StarvedServer server(secret);
  StoreClient member("127.0.0.1", server.port(), secret, 60s);
  member.set("key", "value");
  std::vector<UniqueFd> strangers;
  for (size_t i = 0; i < 100; ++i) {
    // Idle: each stays until the handshake's deadline.
    strangers.push_back(knock({"127.0.0.1", server.port()}, 0));
  }
  const long before = server.processor_time();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 10; ++i) {
    std::this_thread::sleep_for(50ms);
    EXPECT_EQ(member.get("key", 20s), "value");
  }
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
  const auto spent = static_cast<double>(server.processor_time() - before) /
                     static_cast<double>(::sysconf(_SC_CLK_TCK));
  EXPECT_LT(spent, waited.count() / 2 + 0.1);  // a busy loop would have used all of it
  StoreClient late("127.0.0.1", server.port(), secret, 60s);
  late.set("late", "in");
  EXPECT_EQ(member.get("late", 20s), "in");
}

TEST(StoreCrowd, ManyMembersToCome_RaiseTheSoftLimit_AFewDoNot) {
  const pid_t child = ::fork();
  if (child == 0) {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = std::min<rlim_t>(256, limit.rlim_max);
    ::setrlimit(RLIMIT_NOFILE, &limit);
    const auto soft = [&] {
      ::getrlimit(RLIMIT_NOFILE, &limit);
      return limit.rlim_cur;
    };
    const auto secret = random_bytes32();
    bool good = true;
    {
      const StoreServer few(secret, {.members = 4});
      good = good && soft() == 256;
    }
    const StoreServer many(secret, {.members = 300});
    good = good && (soft() > 256 || limit.rlim_max <= 256);
    ::_exit(good ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace coupler::store
