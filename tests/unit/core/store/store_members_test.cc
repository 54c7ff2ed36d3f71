// Which members are lost, how that is detected, and which are not. The ranks are processes that are
// really stopped and killed; lost connections between machines are tested in tests/e2e/hosts.
#include <coupler/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "store/client.h"
#include "store/failure_detector.h"
#include "store/server.h"

namespace coupler::store {
namespace {

using namespace std::chrono_literals;
using Reason = PeerLoss::Reason;

// What is promised within a second is awaited for ten.
constexpr auto kPromised = 10s;

// A separate program, not a fork of the test: a fork of a process with threads may not start
// threads under the thread sanitizer.
class Child {
 public:
  explicit Child(std::vector<std::string> arguments, int output = 1) {
    std::vector<char*> argv;
    for (auto& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(output, 1);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
  }
  ~Child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  void signal(int number) const { ::kill(pid_, number); }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

const std::string kMember = COUPLER_BINARY_DIR "/bin/tests/rendezvous_member";

// Over TCP, and over a Unix socket, which has no acknowledgements.
class StoreMembersTest : public ::testing::TestWithParam<const char*> {
 protected:
  explicit StoreMembersTest(std::chrono::milliseconds timeout = 400ms) {
    StoreServerOptions options;
    options.host = GetParam();
    options.peer_timeout = timeout;
    options.on_lost = [this](const PeerLoss& loss) { server_side_.lose(loss); };
    server_ = std::make_unique<StoreServer>(secret_, options);
  }
  std::unique_ptr<StoreClient> client() const {
    return std::make_unique<StoreClient>(server_->host(), server_->port(), secret_, 20s);
  }
  std::unique_ptr<StoreClient> rank(int number) const {
    auto store = client();
    store->join(number);
    return store;
  }
  // A rank in its own process, which has joined when this returns.
  std::unique_ptr<Child> child(int number) const {
    auto result = std::make_unique<Child>(
        std::vector<std::string>{kMember, "join", server_->host(), std::to_string(server_->port()),
                                 to_hex(secret_), std::to_string(number)});
    EXPECT_TRUE(client()->get(fmt::format("ready/{}", number), 20s));
    return result;
  }

  const Bytes32 secret_ = random_bytes32();
  Peers server_side_;
  std::unique_ptr<StoreServer> server_;
};

class UnwatchedStoreMembersTest : public StoreMembersTest {
 protected:
  UnwatchedStoreMembersTest() : StoreMembersTest(0ms) {}
};

std::optional<PeerLoss> loss_of(const Store& store, int rank) {
  return store.peers()->await_lost({rank}, kPromised);
}

TEST_P(StoreMembersTest, Killed_IsGone_AndTheOthersAreTold) {
  const auto zero = rank(0);
  const auto one = child(1);
  EXPECT_FALSE(zero->peers()->any_lost());
  one->signal(SIGKILL);
  const auto loss = loss_of(*zero, 1);
  ASSERT_TRUE(loss);
  EXPECT_EQ(loss->reason, Reason::kGone);
  EXPECT_EQ(loss->text, fmt::format("rank 1 (process {}) is gone: it ended without leaving the job",
                                    one->pid()));
  EXPECT_TRUE(server_side_.await_lost({1}, kPromised));
}

TEST_P(StoreMembersTest, Stopped_IsLost_AndWaitsEndNamingIt) {
  const auto zero = rank(0);
  const auto one = child(1);
  one->signal(SIGSTOP);
  try {
    zero->get("what rank 1 never sets", 60s);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
    EXPECT_EQ(error.detail().rank, 1);
    EXPECT_NE(std::string(error.what()).find(fmt::format("(process {}) is stopped", one->pid())),
              std::string::npos)
        << error.what();
  }
  EXPECT_EQ(loss_of(*zero, 1)->reason, Reason::kStopped);
  // Existing values can still be read, even by a later member that learns of the loss at once.
  zero->set("key", "value");
  const auto two = rank(2);
  EXPECT_EQ(two->get("key", 20s), "value");
  EXPECT_TRUE(loss_of(*two, 1));
}

TEST_P(StoreMembersTest, Continued_AfterItWasGivenUp_LearnsThat) {
  const auto zero = rank(0);
  const auto one = child(1);
  one->signal(SIGSTOP);
  ASSERT_TRUE(loss_of(*zero, 1));
  one->signal(SIGCONT);
  EXPECT_TRUE(client()->get("told/1", kPromised));
}

TEST_P(StoreMembersTest, StoppedForAMoment_IsNotLost) {
  const auto zero = rank(0);
  const auto one = child(1);
  one->signal(SIGSTOP);
  std::this_thread::sleep_for(100ms);
  one->signal(SIGCONT);
  std::this_thread::sleep_for(600ms);
  EXPECT_FALSE(zero->peers()->any_lost());
}

TEST_P(StoreMembersTest, HeldByADebugger_IsNotLost) {
  const auto zero = rank(0);
  const auto one = child(1);
  if (::ptrace(PTRACE_SEIZE, one->pid(), nullptr, nullptr) != 0) {
    GTEST_SKIP() << "tracing processes is not permitted on this machine";
  }
  ::ptrace(PTRACE_INTERRUPT, one->pid(), nullptr, nullptr);
  int status = 0;
  ::waitpid(one->pid(), &status, 0);
  std::this_thread::sleep_for(1s);
  EXPECT_FALSE(zero->peers()->any_lost());
}

TEST_P(UnwatchedStoreMembersTest, Stopped_IsWaitedFor) {
  const auto zero = rank(0);
  const auto one = child(1);
  one->signal(SIGSTOP);
  EXPECT_FALSE(zero->peers()->await_lost({1}, 1s));
  one->signal(SIGKILL);  // which is detected all the same
  EXPECT_EQ(loss_of(*zero, 1)->reason, Reason::kGone);
}

TEST_P(StoreMembersTest, Leaves_IsNoLoss_AndItMayComeBack) {
  const auto zero = rank(0);
  auto one = rank(1);
  one.reset();
  EXPECT_EQ(loss_of(*zero, 1)->reason, Reason::kLeft);
  zero->set("still", "there");
  EXPECT_FALSE(zero->get("a key that no rank sets", 500ms)) << "its leaving must not end the wait";
  one = rank(1);
  const auto until = std::chrono::steady_clock::now() + kPromised;
  while (zero->peers()->any_lost() && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_FALSE(zero->peers()->any_lost());
}

TEST_P(StoreMembersTest, LeavesByAnException_HasFailed_AndMayComeBack) {
  const auto zero = rank(0);
  zero->peers()->add_activity(this, [] { return std::string("operation 7"); });
  try {
    const auto one = rank(1);
    throw std::runtime_error("the program's own");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(loss_of(*zero, 1)->reason, Reason::kFailed);
  EXPECT_EQ(client()->get(activity_key(0), kPromised), "operation 7");
  try {
    zero->get("a key that no rank sets", 60s);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("has left the job after an error"), std::string::npos);
  }
  const auto one = rank(1);
  const auto until = std::chrono::steady_clock::now() + kPromised;
  while (zero->peers()->any_lost() && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_FALSE(zero->get("a key that no rank sets", 500ms)) << "it has returned";
  zero->peers()->remove_activity(this);
}

TEST_P(StoreMembersTest, Lost_DoesNotComeBack) {
  const auto zero = rank(0);
  auto one = child(1);
  one->signal(SIGKILL);
  ASSERT_TRUE(loss_of(*zero, 1));
  try {
    rank(1);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("the job has given it up"), std::string::npos)
        << error.what();
  }
}

TEST_P(StoreMembersTest, TwoProcessesOfOneRank_TheSecondIsRefused) {
  const auto one = child(1);
  try {
    rank(1);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(
        std::string(error.what()).find(fmt::format("rank 1 is already process {}", one->pid())),
        std::string::npos)
        << error.what();
  }
}

TEST_P(StoreMembersTest, Watched_IsLostBeforeItJoins) {
  const auto zero = rank(0);
  const Child one({"/bin/sleep", "60"});
  server_->watch(1, identity_of(one.pid()));
  one.signal(SIGSTOP);
  EXPECT_EQ(loss_of(*zero, 1)->reason, Reason::kStopped);
}

using ServedStoreMembersTest = ::testing::TestWithParam<const char*>;

TEST_P(ServedStoreMembersTest, HostOfTheStore_IsWatchedByTheOthers) {
  const Bytes32 secret = random_bytes32();
  for (const int how : {SIGSTOP, SIGKILL}) {
    int output[2];
    ASSERT_EQ(::pipe2(output, O_CLOEXEC), 0);
    const Child zero({kMember, "host", GetParam(), to_hex(secret)}, output[1]);
    char text[64] = {};
    ASSERT_GT(::read(output[0], text, sizeof text - 1), 0);
    std::string host;
    int port = -1;
    std::istringstream(text) >> host >> port;
    StoreClient one(host, port, secret, 20s);
    one.join(1);
    EXPECT_FALSE(one.peers()->await_lost({0}, 600ms)) << "it is alive";
    zero.signal(how);
    const auto loss = loss_of(one, 0);
    ASSERT_TRUE(loss);
    EXPECT_EQ(loss->reason, how == SIGSTOP ? Reason::kStopped : Reason::kGone);
    EXPECT_NE(loss->text.find(fmt::format("rank 0 (process {})", zero.pid())), std::string::npos);
    ::close(output[0]);
    ::close(output[1]);
  }
}

TEST_P(ServedStoreMembersTest, HostLeavesInOrder_IsNoLoss) {
  const Bytes32 secret = random_bytes32();
  config::BackendConfig backend;
  StoreServerOptions options = RankZeroStore::server_options(backend);
  options.host = GetParam();
  auto zero = std::make_unique<RankZeroStore>(secret, options, 20s);
  StoreClient one(zero->server().host(), zero->server().port(), secret, 20s);
  one.join(1);
  zero.reset();
  std::this_thread::sleep_for(100ms);
  EXPECT_EQ(loss_of(one, 0)->reason, Reason::kLeft);
}

const auto kSockets = ::testing::Values("127.0.0.1", StoreServerOptions::kUnnamed);
std::string name_of(const ::testing::TestParamInfo<const char*>& row) {
  return row.index == 0 ? "tcp" : "unix";
}
INSTANTIATE_TEST_SUITE_P(Sockets, StoreMembersTest, kSockets, name_of);
INSTANTIATE_TEST_SUITE_P(Sockets, UnwatchedStoreMembersTest, kSockets, name_of);
INSTANTIATE_TEST_SUITE_P(Sockets, ServedStoreMembersTest, kSockets, name_of);

TEST(SilenceTest, ProcessThatRuns_IsMerelySlow) {
  const ProcessIdentity self = own_identity();
  EXPECT_FALSE(detect_failure({1h, -1, &self}, 800ms));
  const ProcessIdentity nobody{self.pid, "1"};
  EXPECT_EQ(detect_failure({1s, -1, &nobody}, 800ms), Reason::kGone);
  EXPECT_FALSE(detect_failure({700ms, -1, nullptr}, 800ms));
  EXPECT_EQ(detect_failure({900ms, -1, nullptr}, 800ms), Reason::kStopped) << "on another machine";
}

// Reading fails midway if the process is reaped meanwhile.
TEST(ProcessStatusTest, OfProcessesThatEnd_IsItsStateOrNothing) {
  for (int i = 0; i < 300; ++i) {
    const pid_t pid = ::fork();
    if (pid == 0) ::_exit(0);
    std::thread reaper([&] { ::waitpid(pid, nullptr, 0); });
    for (char state = status_of(pid).state; state != 0; state = status_of(pid).state) {
      ASSERT_NE(std::string("RSDZX").find(state), std::string::npos) << state;
    }
    reaper.join();
  }
  EXPECT_EQ(status_of(::getpid()).parent, ::getppid());
}

TEST(PeerLossTest, Text_ThereAndBack) {
  const PeerLoss loss{.rank = 3, .reason = Reason::kStopped, .text = "rank 3 (a b) is\nstopped"};
  const auto back = decode_loss(encode(loss));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->rank, 3);
  EXPECT_EQ(back->reason, Reason::kStopped);
  EXPECT_EQ(back->text, loss.text);
  for (const char* wrong : {"", "x", "1", "1 9 text", "-1 0 text"}) {
    EXPECT_FALSE(decode_loss(wrong)) << wrong;
  }
}

}  // namespace
}  // namespace coupler::store
