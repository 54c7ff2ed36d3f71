#include <coupler/error.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/folders.h"

namespace coupler::checkpoint {
namespace {

namespace fs = std::filesystem;

class MakeFolders : public ::testing::Test {
 protected:
  MakeFolders() {
    std::string path = (fs::temp_directory_path() / "coupler-folders-XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    here_ = path;
  }
  ~MakeFolders() override { fs::remove_all(here_); }
  fs::path here_;
};

TEST_F(MakeFolders, SeveralAtOnce_AllFindThem) {
  constexpr int kThreads = 4, kRounds = 100;
  std::atomic<int> arrived{0};
  std::vector<std::string> problems(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < kRounds; ++round) {
        ++arrived;
        while (arrived.load() < kThreads * (round + 1)) std::this_thread::yield();
        try {
          const fs::path wanted = here_ / std::to_string(round) / "a" / "b";
          if (!fs::is_directory(make_folders(wanted.string()))) problems[i] = "not made";
        } catch (const Error& error) {
          problems[i] = error.what();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& problem : problems) EXPECT_EQ(problem, "");
}

TEST_F(MakeFolders, ALinkToNothing_IsNamed) {
  fs::create_symlink(here_ / "nowhere", here_ / "link");
  try {
    make_folders((here_ / "link").string());
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_NE(std::string(error.what()).find("link is a dangling link"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace coupler::checkpoint
