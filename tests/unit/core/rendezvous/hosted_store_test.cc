// The store that rank 0 hosts when the job runs without our launcher.
#include <coupler/error.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "rendezvous/host_store.h"

namespace coupler::rendezvous {
namespace {

using namespace std::chrono_literals;

config::BackendConfig within(std::chrono::nanoseconds timeout) {
  config::BackendConfig backend;
  backend.timeout = timeout;
  return backend;
}

class HostedStoreTest : public ::testing::Test {
 protected:
  HostedStoreTest() {
    char name[] = "/tmp/coupler-test-XXXXXX";
    folder_ = ::mkdtemp(name);
    ::setenv("XDG_RUNTIME_DIR", folder_.c_str(), 1);
  }
  ~HostedStoreTest() override {
    ::unsetenv("XDG_RUNTIME_DIR");
    std::filesystem::remove_all(folder_);
  }
  size_t files() const {
    const auto path = folder_ + "/coupler";
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(path), {}));
  }
  std::string folder_;
};

TEST_F(HostedStoreTest, Ranks_MeetThroughPrivateFiles_WhichAreRemoved) {
  std::shared_ptr<store::Store> one;
  std::thread rank_one([&] { one = host_or_join_store("job", 1, within(20s)); });
  std::this_thread::sleep_for(20ms);  // rank 1 comes first
  auto zero = host_or_join_store("job", 0, within(20s));
  rank_one.join();
  zero->set("key", "value");
  EXPECT_EQ(one->get("key", 20s), "value");
  EXPECT_EQ(files(), 2U);  // the job file and the socket
  for (const auto& entry : std::filesystem::directory_iterator(folder_ + "/coupler")) {
    struct stat status {};
    ASSERT_EQ(::stat(entry.path().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777U, 0600U);
  }
  one.reset();
  zero.reset();
  EXPECT_EQ(files(), 0U);
}

TEST_F(HostedStoreTest, TwoJobsOfOneId_AreRefused_WithAHint) {
  const auto first = host_or_join_store("job", 0, within(20s));
  try {
    host_or_join_store("job", 0, within(20s));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_NE(std::string(error.what()).find("MASTER_PORT"), std::string::npos) << error.what();
  }
  EXPECT_EQ(files(), 2U);  // those of the first store
}

TEST_F(HostedStoreTest, FilesOfAKilledRankZero_AreIgnoredAndReplaced) {
  const pid_t child = ::fork();
  if (child == 0) {
    const auto store = host_or_join_store("job", 0, within(20s));
    ::kill(::getpid(), SIGKILL);
  }
  ::waitpid(child, nullptr, 0);
  ASSERT_EQ(files(), 2U);
  try {
    host_or_join_store("job", 1, within(50ms));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kTimeout);
    EXPECT_EQ(error.detail().rank, 0);
  }
  const auto zero = host_or_join_store("job", 0, within(20s));
  const auto one = host_or_join_store("job", 1, within(20s));
  one->set("key", "value");
  EXPECT_EQ(zero->get("key", 20s), "value");
  EXPECT_EQ(files(), 2U);  // the new ones
}

// The next job removes the socket of a killed rank 0, but not the job file of another id.
TEST_F(HostedStoreTest, SocketOfAKilledRankZero_IsRemovedByTheNextJob_AndNoOther) {
  int go[2];
  ASSERT_EQ(::pipe(go), 0);
  const pid_t child = ::fork();  // before any thread is started
  if (child == 0) {
    char byte = 0;
    (void)!::read(go[0], &byte, 1);
    const auto store = host_or_join_store("killed", 0, within(20s));
    ::kill(::getpid(), SIGKILL);
  }
  const auto alive = host_or_join_store("alive", 0, within(20s));
  ASSERT_EQ(::write(go[1], "", 1), 1);
  ::waitpid(child, nullptr, 0);
  ::close(go[0]);
  ::close(go[1]);
  ASSERT_EQ(files(), 4U);
  const auto next = host_or_join_store("next", 0, within(20s));
  EXPECT_EQ(files(), 5U);
  host_or_join_store("alive", 1, within(20s))->set("key", "value");
  EXPECT_EQ(alive->get("key", 20s), "value");
}

TEST_F(HostedStoreTest, FolderOthersCanEnter_IsRefused_NamingIt) {
  private_runtime_folder();
  const auto folder = folder_ + "/coupler";
  ::chmod(folder.c_str(), 0755);
  try {
    host_or_join_store("job", 0, within(20s));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(folder), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace coupler::rendezvous
