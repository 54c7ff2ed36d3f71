// The Unix sockets on which the ranks of one machine meet: the peer's identity, the files on disk,
// and a full queue. Other users: store_users_test.cc.
#include <coupler/error.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "knocking.h"
#include "store/client.h"
#include "store/link.h"
#include "store/server.h"

namespace coupler::store {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

class LocalSocketTest : public ::testing::Test {
 protected:
  LocalSocketTest() {
    char name[] = "/tmp/coupler-test-XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  ~LocalSocketTest() override { fs::remove_all(folder_); }
  size_t files() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), {}));
  }
  std::string folder_;
};

template <typename Call>
Error error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error";
  return {ErrorCode::kInternal, "none"};
}

// The files of that process's unnamed listeners, wherever they may be.
std::set<std::string> files_of(pid_t process) {
  std::set<std::string> found;
  const auto part = "-" + std::to_string(process) + "-";
  for (const char* folder : {"/dev/shm", "/tmp"}) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      const auto name = entry.path().filename().string();
      if (name.find("store-") != std::string::npos && name.find(part) != std::string::npos) {
        found.insert(entry.path());
      }
    }
  }
  return found;
}

TEST_F(LocalSocketTest, WithoutAName_IsReachedThroughItsProcess_AndHasNoFile) {
  LocalListener listener("");
  EXPECT_EQ(listener.path().find("/proc/" + std::to_string(::getpid()) + "/fd/"), 0U);
  EXPECT_EQ(files_of(::getpid()), std::set<std::string>{});
  const UniqueFd door = listener.take_socket();
  const UniqueFd client = connect_locally(listener.path(), deadline_after(20s));
  const UniqueFd server(::accept(door.get(), nullptr, nullptr));
  ASSERT_EQ(send_all(client.get(), "hello", 5, deadline_after(20s)), IoResult::kOk);
  char text[6] = {};
  ASSERT_EQ(receive_all(server.get(), text, 5, deadline_after(20s)), IoResult::kOk);
  EXPECT_EQ(std::string(text), "hello");
  EXPECT_EQ(user_of_peer(client.get()), ::geteuid());
  EXPECT_EQ(user_of_peer(server.get()), ::geteuid());
}

TEST_F(LocalSocketTest, InAFolder_IsAFileOfOnesOwn_RemovedInTheEnd_AndNamedAnewEachTime) {
  ::chmod(folder_.c_str(), 0755);
  std::set<std::string> names;
  for (int i = 0; i < 20; ++i) {
    const LocalListener listener(folder_);
    struct stat status {};
    ASSERT_EQ(::stat(listener.path().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777U, 0600U);
    EXPECT_TRUE(connect_locally(listener.path(), deadline_after(20s)));
    EXPECT_EQ(files(), 1U);
    EXPECT_TRUE(names.insert(listener.path()).second) << listener.path();
  }
  EXPECT_EQ(files(), 0U);
}

// A socket address holds at most 107 bytes.
TEST_F(LocalSocketTest, InAFolderWithALongPath_IsReachedAsWell) {
  const auto folder = folder_ + "/" + std::string(200, 'f');
  fs::create_directory(folder);
  const StoreServer server(Bytes32{}, {.host = folder});
  EXPECT_EQ(server.host().find(folder + "/"), 0U);
  StoreClient(server.host(), server.port(), Bytes32{}, 20s).set("key", "value");
}

TEST_F(LocalSocketTest, NoSuchFolder_IsAnErrorNamingIt) {
  const auto error = error_of([&] { LocalListener(folder_ + "/none"); });
  EXPECT_EQ(error.code(), ErrorCode::kIo);
  EXPECT_NE(std::string(error.what()).find(folder_ + "/none: No such file"), std::string::npos)
      << error.what();
}

TEST_F(LocalSocketTest, NobodyListening_IsAnErrorAtOnce_NamingThePath) {
  std::string path;
  {
    const LocalListener listener(folder_);
    path = listener.path();
  }
  const auto error = error_of([&] { connect_locally(path, deadline_after(20s)); });
  EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
  EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
  // A path that is not one of our listeners' is not truncated to fit.
  const auto longer = error_of([&] { connect_locally(path + std::string(80, 'x'), {}); });
  EXPECT_NE(std::string(longer.what()).find("too long"), std::string::npos) << longer.what();
}

TEST_F(LocalSocketTest, FullQueue_IsWaitedFor_UntilTheDeadline) {
  LocalListener listener("");
  const UniqueFd door = listener.take_socket();
  ASSERT_EQ(::listen(door.get(), 1), 0);
  std::vector<UniqueFd> queue;
  do {
    queue.push_back(connect_without_waiting({listener.path()}));
  } while (errno == 0 && queue.size() < 100);
  ASSERT_EQ(errno, EAGAIN);
  const auto begin = std::chrono::steady_clock::now();
  const auto error = error_of([&] { connect_locally(listener.path(), deadline_after(100ms)); });
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 100ms);
  EXPECT_EQ(error.code(), ErrorCode::kTimeout);
  EXPECT_NE(std::string(error.what()).find(listener.path()), std::string::npos) << error.what();

  std::thread taking([&] {
    std::this_thread::sleep_for(100ms);
    while (const UniqueFd one{::accept(door.get(), nullptr, nullptr)}) {
    }
  });
  EXPECT_TRUE(connect_locally(listener.path(), deadline_after(20s)));
  taking.join();
}

// A store in its own process, to be killed.
class ServerToKill {
 public:
  explicit ServerToKill(const Bytes32& secret) {
    int path[2];
    if (::pipe2(path, O_CLOEXEC) != 0) return;
    process_ = ::fork();
    if (process_ == 0) {
      const StoreServer server(secret, {.host = StoreServerOptions::kUnnamed});
      (void)!::write(path[1], server.host().data(), server.host().size());
      ::pause();
    }
    char text[64] = {};
    (void)!::read(path[0], text, sizeof text - 1);
    ::close(path[0]);
    ::close(path[1]);
    path_ = text;
  }
  ~ServerToKill() { kill(); }
  ServerToKill(const ServerToKill&) = delete;
  ServerToKill& operator=(const ServerToKill&) = delete;
  void kill() const {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  const std::string& path() const { return path_; }
  pid_t process() const { return process_; }

 private:
  pid_t process_ = -1;
  std::string path_;
};

TEST_F(LocalSocketTest, ServerIsKilled_NothingIsLeft) {
  const Bytes32 secret = random_bytes32();
  const ServerToKill server(secret);
  StoreClient client(server.path(), 0, secret, 20s);
  client.set("key", "value");
  server.kill();
  EXPECT_EQ(files_of(server.process()), std::set<std::string>{});
  EXPECT_THROW(client.get("key", 20s), Error);
  EXPECT_EQ(error_of([&] { StoreClient(server.path(), 0, secret, 20s); }).code(),
            ErrorCode::kPeerLost);
}

// The path of a closed store may be reused by the next one; members of the first are not members of
// the second.
TEST_F(LocalSocketTest, NextStoreOfAProcess_DoesNotServeMembersOfTheOneBefore) {
  const Bytes32 first = random_bytes32();
  std::string path;
  {
    const StoreServer server(first, {.host = StoreServerOptions::kUnnamed});
    path = server.host();
  }
  const StoreServer next(random_bytes32(), {.host = StoreServerOptions::kUnnamed});
  const auto error = error_of([&] { StoreClient(path, 0, first, 20s).set("key", "value"); });
  EXPECT_EQ(error.code(), ErrorCode::kPeerLost) << error.what();
  EXPECT_EQ(next.clients(), 0U);
}

}  // namespace
}  // namespace coupler::store
