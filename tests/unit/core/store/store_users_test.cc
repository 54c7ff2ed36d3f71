// Other users who contact a store on a Unix socket: the kernel keeps them out; root, whom it lets
// in, cannot disturb the store; and a client reveals nothing to another user's listener. Only root
// can act as two users. Processes are forked before the test has threads.
#include <coupler/error.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "knocking.h"
#include "store/client.h"
#include "store/server.h"
#include "store/wire.h"

namespace coupler::store {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

constexpr uid_t kNobody = 65534;

// Messages between a test and its processes.
void say(int fd, const std::string& word) {
  const auto line = word + "\n";
  (void)!::write(fd, line.data(), line.size());
}
std::string hear(int fd) {
  std::string word;
  char byte = 0;
  while (::read(fd, &byte, 1) == 1 && byte != '\n') {
    word += byte;
  }
  return word;
}

// A process of user nobody, which ends with the test.
class NobodysProcess {
 public:
  explicit NobodysProcess(const std::function<void(int in, int out)>& run) {
    int in[2];
    int out[2];
    if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) return;
    process_ = ::fork();
    if (process_ == 0) {
      ::close(in[1]);
      ::close(out[0]);
      if (::setgid(kNobody) == 0 && ::setuid(kNobody) == 0) {
        ::prctl(PR_SET_DUMPABLE, 1);  // like a program started by this user
        run(in[0], out[1]);
      }
      ::_exit(0);
    }
    ::close(in[0]);
    ::close(out[1]);
    in_.reset(in[1]);
    out_.reset(out[0]);
  }
  ~NobodysProcess() {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  NobodysProcess(const NobodysProcess&) = delete;
  NobodysProcess& operator=(const NobodysProcess&) = delete;

  void tell(const std::string& word) const { say(in_.get(), word); }
  std::string answer() const { return hear(out_.get()); }
  std::string ask(const std::string& word) const {
    tell(word);
    return answer();
  }
  void signal(int number) const { ::kill(process_, number); }
  size_t descriptors() const {
    return static_cast<size_t>(
        std::distance(fs::directory_iterator("/proc/" + std::to_string(process_) + "/fd"), {}));
  }
  size_t memory() const {  // resident, in bytes
    std::ifstream file("/proc/" + std::to_string(process_) + "/statm");
    size_t pages = 0;
    file >> pages >> pages;
    return pages * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  }

 private:
  pid_t process_ = -1;
  UniqueFd in_, out_;
};

class StoreUsersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can be two users";
    char name[] = "/tmp/coupler-test-XXXXXX";
    folder_ = ::mkdtemp(name);
    ::chmod(folder_.c_str(), 0755);  // the folder lets user nobody in: the socket itself must not
  }
  void TearDown() override {
    if (!folder_.empty()) fs::remove_all(folder_);
  }
  const Bytes32 secret_ = random_bytes32();
  std::string folder_;
};

void keep_connecting(int in, int out) {
  for (std::string path = hear(in); !path.empty(); path = hear(in)) {
    std::vector<UniqueFd> held;
    int refused = 0;
    for (int i = 0; i < 1000; ++i) {
      held.push_back(connect_without_waiting({path}));
      refused += errno == EACCES ? 1 : 0;
      ::send(held.back().get(), "garbage", 7, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    say(out, std::to_string(refused));
  }
}

TEST_F(StoreUsersTest, StrangersOfAnotherUser_AreKeptOutByTheKernel) {
  const NobodysProcess stranger(keep_connecting);
  for (const auto& host : {std::string(StoreServerOptions::kUnnamed), folder_}) {
    const StoreServer server(secret_, {.host = host});
    StoreClient member(server.host(), server.port(), secret_, 20s);
    stranger.tell(server.host());
    for (int i = 1; i <= 100; ++i) {
      ASSERT_EQ(member.add("steps", 1), i);
      ASSERT_EQ(StoreClient(server.host(), server.port(), secret_, 20s).add("came", 1), i);
    }
    EXPECT_EQ(stranger.answer(), "1000") << server.host();
  }
}

// Serves until the test ends; its log goes to the file.
std::function<void(int, int)> serving(const Bytes32& secret, const std::string& log) {
  return [secret, log](int in, int out) {
    const UniqueFd file(::open(log.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
    ::dup2(file.get(), 2);
    const StoreServer server(secret, {.host = StoreServerOptions::kUnnamed});
    say(out, server.host());
    hear(in);
  };
}

// Joins and leaves once for each path that it receives.
std::function<void(int, int)> joining(const Bytes32& secret) {
  return [secret](int in, int out) {
    for (std::string path = hear(in); !path.empty(); path = hear(in)) {
      try {
        say(out, std::to_string(StoreClient(path, 0, secret, 60s).add("came", 1)));
      } catch (const Error& error) {
        say(out, error.what());
      }
    }
  };
}

// A user whom the kernel does not keep out (root, like this test) at the store of user nobody.
class RootAtTheDoorTest : public StoreUsersTest {
 protected:
  void SetUp() override {
    StoreUsersTest::SetUp();
    if (IsSkipped()) return;
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
    most_ = limit.rlim_max;
    std::ofstream{folder_ + "/log"};
    ASSERT_EQ(::chown((folder_ + "/log").c_str(), kNobody, kNobody), 0);
    server_ = std::make_unique<NobodysProcess>(serving(secret_, folder_ + "/log"));
    member_ = std::make_unique<NobodysProcess>(joining(secret_));
    path_ = server_->answer();
    ASSERT_TRUE(is_local(path_));
  }
  // Whether the other side has closed it without sending anything.
  static bool is_closed_unheard(const UniqueFd& stranger) {
    char byte = 0;
    return receive_all(stranger.get(), &byte, 1, deadline_after(20s)) == IoResult::kClosed;
  }
  void expect_joined(int time) const { ASSERT_EQ(member_->ask(path_), std::to_string(time)); }

  rlim_t most_ = 0;
  std::unique_ptr<NobodysProcess> server_;
  std::unique_ptr<NobodysProcess> member_;
  std::string path_;
};

TEST_F(RootAtTheDoorTest, CrowdOfConnections_IsClosedUnheard_AndCostsNothing) {
  std::vector<UniqueFd> held;
  const auto knock = [&] {
    for (int i = 0; i < 100; ++i) {
      held.push_back(connect_without_waiting({path_}));
      ASSERT_EQ(errno, 0);
      ::send(held.back().get(), "garbage", 7, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
  };
  expect_joined(1);
  knock();
  EXPECT_TRUE(is_closed_unheard(held.back()));
  const size_t descriptors = server_->descriptors();
  const size_t memory = server_->memory();
  for (int round = 0; round < 30; ++round) {
    knock();
    expect_joined(round + 2);
    // One that is being closed, and the member that may be leaving.
    EXPECT_LE(server_->descriptors(), descriptors + 2);
  }
  for (const auto& stranger : held) {
    ASSERT_TRUE(is_closed_unheard(stranger));
  }
  EXPECT_LE(server_->memory(), memory + (2 << 20));
  // Logged for the 1st, 2nd, 4th, 8th …
  std::ifstream log(folder_ + "/log");
  std::string line;
  int lines = 0;
  while (std::getline(log, line)) {
    EXPECT_NE(line.find("from other users, the last from user 0"), std::string::npos) << line;
    ++lines;
  }
  EXPECT_GE(lines, 1);
  EXPECT_LE(lines, 12);
}

TEST_F(RootAtTheDoorTest, FullQueue_KeepsNoMemberOut) {
  if (most_ < 6000) GTEST_SKIP() << "the limit of open files is too low to fill the queue";
  server_->signal(SIGSTOP);
  std::vector<UniqueFd> queue;
  do {
    queue.push_back(connect_without_waiting({path_}));
  } while (errno == 0 && queue.size() + 500 < most_);
  ASSERT_EQ(errno, EAGAIN) << queue.size();
  member_->tell(path_);
  std::this_thread::sleep_for(200ms);
  server_->signal(SIGCONT);
  EXPECT_EQ(member_->answer(), "1");
}

// Sends a store's greeting, then records what a client sends.
std::function<void(int, int)> pretending(const std::string& folder) {
  return [folder](int, int out) {
    LocalListener listener(folder);
    const UniqueFd door = listener.take_socket();
    ::fcntl(door.get(), F_SETFL, 0);  // blocking
    say(out, listener.path());
    const UniqueFd client(::accept(door.get(), nullptr, nullptr));
    const auto hello = std::string(store_wire::kMagic) + std::string(32, 'n');
    ::send(client.get(), hello.data(), hello.size(), MSG_NOSIGNAL);
    size_t heard = 0;
    char bytes[256];
    for (ssize_t got = 1; got > 0;) {
      got = ::read(client.get(), bytes, sizeof bytes);
      heard += got > 0 ? static_cast<size_t>(got) : 0;
    }
    say(out, std::to_string(heard));
  };
}

TEST_F(StoreUsersTest, ListenerOfAnotherUser_IsToldNothing) {
  ASSERT_EQ(::chown(folder_.c_str(), kNobody, kNobody), 0);
  const NobodysProcess listener(pretending(folder_));
  const auto path = listener.answer();
  ASSERT_TRUE(is_local(path));
  try {
    const StoreClient client(path, 0, secret_, 20s);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
    const std::string text = error.what();
    EXPECT_NE(text.find(path + " runs as user 65534, but this process runs as user 0"),
              std::string::npos)
        << text;
  }
  EXPECT_EQ(listener.answer(), "0");
}

}  // namespace
}  // namespace coupler::store
