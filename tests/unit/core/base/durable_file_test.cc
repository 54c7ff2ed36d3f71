#include "base/durable_file.h"

#include <coupler/error.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <string>

namespace coupler {
namespace {

namespace fs = std::filesystem;

class DurableFiles : public ::testing::Test {
 protected:
  DurableFiles() {
    std::string path = (fs::temp_directory_path() / "coupler-durable-XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    folder_ = path;
  }
  ~DurableFiles() override { fs::remove_all(folder_); }

  std::string at(const std::string& name) const { return (folder_ / name).string(); }
  static std::string bytes_of(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  fs::path folder_;
};

std::string io_error(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    return error.what();
  }
  return "no error";
}

TEST_F(DurableFiles, WhatIsWrittenInPieces_IsThere_WithItsSizeAndHash) {
  std::string expected;
  DurableFile file(at("data"));
  // Smaller and larger than the block that is written to the disk at once.
  for (const size_t size : {0u, 1u, 4096u, (1u << 20) - 1, 9u << 20, 7u}) {
    const std::string piece(size, static_cast<char>('a' + size % 26));
    file.write(piece.data(), piece.size());
    expected += piece;
  }
  const WrittenFile written = file.finish();
  EXPECT_EQ(written.bytes, expected.size());
  EXPECT_EQ(to_hex(written.sha256), to_hex(Digest().update(expected).finish()));
  EXPECT_EQ(bytes_of(at("data")), expected);
}

// The background thread writes full blocks and one partial block; none ends where the caller's
// pieces end.
TEST_F(DurableFiles, ALargeOne_IsThere_WithItsSizeHashAndSums) {
  std::string expected(33'333'333, '\0');
  for (size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<char>(i * 7 + i / 4096);
  DurableFile file(at("data"));
  for (size_t done = 0; done < expected.size();) {
    const size_t size = std::min<size_t>(expected.size() - done, 3'000'001);
    file.write(expected.data() + done, size);
    done += size;
  }
  const WrittenFile written = file.finish();
  EXPECT_EQ(written.bytes, expected.size());
  EXPECT_EQ(to_hex(written.sha256), to_hex(Digest().update(expected).finish()));
  ChunkSums sums;
  sums.update(expected.data(), expected.size());
  EXPECT_EQ(written.sums, sums.finish());
  EXPECT_TRUE(bytes_of(at("data")) == expected);
}

TEST_F(DurableFiles, OneThatEndsWithAFullBlock_IsThere) {
  const std::string expected(size_t{16} << 20, 'x');
  DurableFile file(at("data"));
  file.write(expected.data(), expected.size());
  EXPECT_EQ(file.finish().bytes, expected.size());
  EXPECT_TRUE(bytes_of(at("data")) == expected);
}

TEST_F(DurableFiles, ALargeOneThatIsNotFinished_IsRemoved) {
  const std::string data(size_t{40} << 20, 'x');
  {
    DurableFile file(at("data"));
    file.write(data.data(), data.size());
  }
  EXPECT_FALSE(fs::exists(at("data")));
}

// Also with a limit inside a block, part of which the system still writes.
TEST_F(DurableFiles, ADiskThatIsFullInTheMiddleOfALargeOne_IsAnError_AndNothingIsLeft) {
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const std::string data(size_t{40} << 20, 'x');
  for (const rlim_t most : {size_t{12} << 20, (size_t{13} << 20) + 5000, size_t{39} << 20}) {
    rlimit small = before;
    small.rlim_cur = most;
    ::setrlimit(RLIMIT_FSIZE, &small);
    const auto message = io_error([&] {
      DurableFile file(at("data"));
      file.write(data.data(), data.size());
      file.finish();
    });
    ::setrlimit(RLIMIT_FSIZE, &before);
    EXPECT_EQ(message, "cannot write " + at("data") + ": File too large") << most;
    EXPECT_FALSE(fs::exists(at("data")));
  }
}

TEST_F(DurableFiles, OneThatIsNotFinished_IsRemoved) {
  {
    DurableFile file(at("data"));
    file.write("x", 1);
  }
  EXPECT_FALSE(fs::exists(at("data")));
}

TEST_F(DurableFiles, OneThatIsThere_IsNotWrittenOver) {
  DurableFile(at("data")).finish();
  const auto message = io_error([&] { DurableFile file(at("data")); });
  EXPECT_EQ(message, "cannot create " + at("data") + ": File exists");
}

TEST_F(DurableFiles, InAFolderThatIsNotThere_IsAnError) {
  EXPECT_NE(io_error([&] { DurableFile file(at("none/data")); }).find(at("none/data")),
            std::string::npos);
  EXPECT_NE(io_error([&] { sync_folder(at("none")); }).find(at("none")), std::string::npos);
}

TEST_F(DurableFiles, ADiskThatTakesNoMore_IsAnError_AndNothingIsLeft) {
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  rlimit small = before;
  small.rlim_cur = 100000;
  ::setrlimit(RLIMIT_FSIZE, &small);
  const std::string data(200000, 'x');
  const auto message = io_error([&] {
    DurableFile file(at("data"));
    file.write(data.data(), data.size());
  });
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(message, "cannot write " + at("data") + ": File too large");
  EXPECT_FALSE(fs::exists(at("data")));
}

TEST_F(DurableFiles, Replacing_KeepsTheOldOne_WhereTheNewCannotBeWritten) {
  replace_file(at("manifest"), "old");
  replace_file(at("manifest"), "new");
  EXPECT_EQ(bytes_of(at("manifest")), "new");
  std::ofstream(at("manifest.new")) << "left by a killed process";
  replace_file(at("manifest"), "newer");
  EXPECT_EQ(bytes_of(at("manifest")), "newer");
  EXPECT_FALSE(fs::exists(at("manifest.new")));
  fs::create_directory(at("manifest.new"));  // cannot be unlinked
  EXPECT_NE(io_error([&] { replace_file(at("manifest"), "lost"); }), "no error");
  EXPECT_EQ(bytes_of(at("manifest")), "newer");
}

TEST_F(DurableFiles, AFolder_GetsItsName) {
  fs::create_directory(at("new"));
  DurableFile(at("new/data")).finish();
  sync_folder(at("new"));
  rename_durably(at("new"), at("kept"));
  EXPECT_TRUE(fs::exists(at("kept/data")));
  EXPECT_NE(io_error([&] { rename_durably(at("new"), at("other")); }).find(at("other")),
            std::string::npos);
}

}  // namespace
}  // namespace coupler
