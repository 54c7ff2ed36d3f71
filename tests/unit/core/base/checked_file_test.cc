#include <coupler/error.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/durable_file.h"
#include "base/mapped_file.h"

namespace coupler {
namespace {

class CheckedFiles : public ::testing::Test {
 protected:
  CheckedFiles() {
    std::string path = (std::filesystem::temp_directory_path() / "coupler-checked-XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    folder_ = path;
    path_ = folder_ / "data";
    data_.resize(2 * kCheckedChunk + 12345);
    std::mt19937 random(1);
    std::generate(data_.begin(), data_.end(), [&] { return static_cast<char>(random()); });
    DurableFile file(path_);
    file.write(data_.data(), 1000);
    file.write(data_.data() + 1000, data_.size() - 1000);
    written_ = file.finish();
  }
  ~CheckedFiles() override { std::filesystem::remove_all(folder_); }

  CheckedFile open() const { return {path_, written_.bytes, written_.sums}; }
  void flip(size_t place) const {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(place));
    file.put(static_cast<char>(data_[place] ^ 1));
  }
  static std::string refusal(const std::function<void()>& action) {
    try {
      action();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kIo);
      return error.what();
    }
    return "no error";
  }

  std::filesystem::path folder_;
  std::string path_;
  std::string data_;
  WrittenFile written_;
};

TEST_F(CheckedFiles, Sums_AreThoseOfTheChunks) {
  ASSERT_EQ(written_.sums.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    const size_t begin = i * kCheckedChunk;
    EXPECT_EQ(written_.sums[i], chunk_sum(data_.data() + begin,
                                          std::min<size_t>(kCheckedChunk, data_.size() - begin)));
  }
}

TEST_F(CheckedFiles, AnyRange_IsReadAsItWasWritten) {
  CheckedFile file = open();
  std::mt19937 random(2);
  const auto check = [&](size_t begin, size_t size) {
    std::string into(size, '\0');
    file.read(begin, into.data(), size);
    EXPECT_EQ(into, data_.substr(begin, size)) << begin << " " << size;
  };
  check(0, data_.size());
  check(data_.size(), 0);
  check(kCheckedChunk, kCheckedChunk);
  check(kCheckedChunk - 1, 2);
  for (int i = 0; i < 200; ++i) {
    const size_t begin = random() % data_.size();
    check(begin, random() % (data_.size() - begin + 1));
  }
}

TEST_F(CheckedFiles, AFlippedBit_IsFound_WhereItMatters) {
  flip(kCheckedChunk + 77);
  CheckedFile file = open();
  std::string into(10, '\0');
  file.read(0, into.data(), 10);
  file.read(data_.size() - 10, into.data(), 10);
  const auto said = refusal([&] { file.read(kCheckedChunk + 1000, into.data(), 10); });
  EXPECT_NE(said.find(path_ + " is damaged between bytes 4194304 and 8388608: its checksum"),
            std::string::npos)
      << said;
  // The chunk is not marked as verified.
  EXPECT_NE(refusal([&] { file.read(kCheckedChunk + 1000, into.data(), 10); }), "no error");
}

TEST_F(CheckedFiles, AnotherSize_IsRefused) {
  std::filesystem::resize_file(path_, data_.size() - 1);
  EXPECT_NE(refusal([&] { open(); }).find(" has 8400952 bytes, but 8400953 were written"),
            std::string::npos);
  EXPECT_NE(refusal([&] { CheckedFile(path_ + "x", 1, {0}); }).find("cannot be opened"),
            std::string::npos);
  EXPECT_NE(refusal([&] { CheckedFile(folder_.string(), 1, {0}); }).find("not a regular file"),
            std::string::npos);
}

TEST_F(CheckedFiles, ARangeBeyondTheEnd_AndTooFewSums_AreRefused) {
  CheckedFile file = open();
  char byte = 0;
  EXPECT_NE(refusal([&] { file.read(data_.size(), &byte, 1); }), "no error");
  EXPECT_NE(refusal([&] { file.read(~uint64_t{0}, &byte, 2); }), "no error");
  EXPECT_NE(refusal([&] {
              CheckedFile(path_, written_.bytes, {1, 2});
            }).find("has the wrong number of checksums: 2 for"),
            std::string::npos);
}

}  // namespace
}  // namespace coupler
