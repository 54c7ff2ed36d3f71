#include <coupler/error.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "refusal.h"
#include "residency/disk_source.h"
#include "working_folder.h"

namespace coupler::residency {
namespace {

constexpr size_t kBlock = 3 * BlockFile::kAlignment;

struct Free {
  void operator()(char* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<char, Free>;

Memory filled_block(char value, size_t size = kBlock) {
  Memory memory(static_cast<char*>(std::aligned_alloc(BlockFile::kAlignment, size)));
  std::memset(memory.get(), value, size);
  return memory;
}

TEST(BlockFile, GivesBackWhatWasWrittenAndZerosElsewhere) {
  const WorkingFolder folder;
  BlockFile file(folder.path());
  const uint64_t first = file.grow(kBlock), second = file.grow(kBlock - 1);
  EXPECT_EQ(first, 0u);
  EXPECT_EQ(second, kBlock);
  EXPECT_EQ(file.size(), 2 * kBlock);
  file.write(second, filled_block('b').get(), kBlock);
  const Memory read = filled_block('x');
  file.read(second, read.get(), kBlock);
  EXPECT_EQ(std::memcmp(read.get(), filled_block('b').get(), kBlock), 0);
  file.read(first, read.get(), kBlock);
  EXPECT_EQ(std::memcmp(read.get(), filled_block('\0').get(), kBlock), 0);
}

TEST(BlockFile, LeavesNothingInItsFolder) {
  const WorkingFolder folder;
  BlockFile file(folder.path());
  file.grow(kBlock);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(BlockFile, RefusesAFolderThatIsNotThere) {
  const WorkingFolder folder;
  const std::string missing = folder.path() / "missing";
  const std::string message = testing::message_of([&] { BlockFile file(missing); });
  EXPECT_NE(message.find(missing), std::string::npos) << message;
  EXPECT_NE(message.find("No such file or directory"), std::string::npos) << message;
  EXPECT_NE(message.find("create the folder"), std::string::npos) << message;
}

TEST(BlockFile, RefusesAFile) {
  const WorkingFolder folder;
  folder.write("file", "");
  const std::string path = folder.path() / "file";
  const std::string message = testing::message_of([&] { BlockFile file(path); });
  EXPECT_NE(message.find("Not a directory"), std::string::npos) << message;
}

// A resource limit of the process stands in for a full disk.
TEST(BlockFile, SaysThatThereIsNoRoomBeforeAnythingIsWritten) {
  const WorkingFolder folder;
  BlockFile file(folder.path());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  ASSERT_NE(std::signal(SIGXFSZ, SIG_IGN), SIG_ERR);
  const rlimit small{.rlim_cur = 4 * kBlock, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  file.grow(kBlock);
  const std::string message = testing::message_of([&] { file.grow(size_t{1} << 30); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_NE(message.find("no room to offload 1.0 GiB to " + folder.path().string()),
            std::string::npos)
      << message;
  EXPECT_NE(message.find("larger disk"), std::string::npos) << message;
  EXPECT_EQ(file.size(), kBlock);
}

}  // namespace
}  // namespace coupler::residency
