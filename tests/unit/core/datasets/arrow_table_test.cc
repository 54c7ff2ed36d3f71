#include "datasets/arrow_table.h"

#include <coupler/error.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "core/datasets/dataset_files.h"
#include "datasets/views.h"
#include "refusal.h"

namespace coupler::datasets {
namespace {

using testing::DatasetFolder;
using testing::load_file;
using testing::message_of;
using testing::rows_of;

class ArrowTables : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(std::string(COUPLER_BINARY_DIR) + "/lib/libcoupler_arrow.so"))
      GTEST_SKIP() << "built without Apache Arrow: scripts/setup --arrow";
  }
};

using ArrowTable = ArrowTables;

TEST_F(ArrowTable, EveryType_IsReadAsPyarrowReadsIt) {
  for (const char* name : {"types.parquet", "types.arrow", "types.feather"}) {
    SCOPED_TRACE(name);
    testing::expect_as_pyarrow(*load_file(testing::fixture(name)), "types.expected.json");
  }
}

TEST_F(ArrowTable, SelectedColumns_HaveTheSameValues) {
  const auto whole = load_file(testing::fixture("types.parquet"));
  const auto some = select_columns(slice_rows(whole, 1, 4), {"chat", "i8", "words"});
  ASSERT_EQ(some->size(), 4);
  for (size_t row = 0; row < 4; ++row) {
    const Row all = whole->read(row + 1), few = some->read(row);
    EXPECT_EQ(few.column_names(), (std::vector<std::string>{"chat", "i8", "words"}));
    for (const std::string& column : few.column_names()) EXPECT_EQ(few[column], all[column]);
  }
}

// Every row group is larger than the cache, so each is decoded again and again.
TEST_F(ArrowTable, ManyThreads_ReadTheSameRows) {
  const auto wanted = rows_of(*load_file(testing::fixture("types.feather")));
  const auto table = load_file(testing::fixture("types.parquet"), {.cache_bytes = 1});
  std::vector<nlohmann::ordered_json> found(4);
  {
    std::vector<std::jthread> threads;
    for (auto& rows : found) {
      threads.emplace_back([&] {
        for (int i = 0; i < 5; ++i) rows = rows_of(*table);
      });
    }
  }
  for (const auto& rows : found) EXPECT_EQ(rows, wanted);
}

TEST_F(ArrowTable, CutFile_IsRefused) {
  const DatasetFolder folder;
  for (const char* name : {"types.parquet", "types.arrow", "types.feather"}) {
    const std::string whole = testing::contents(testing::fixture(name));
    for (const size_t size : {size_t{0}, size_t{3}, whole.size() / 3, whole.size() - 9}) {
      const std::string path = folder.write(name, whole.substr(0, size));
      const std::string message = message_of([&] { rows_of(*load_file(path)); });
      EXPECT_TRUE(message.starts_with(path + " is not a complete ")) << size << ": " << message;
    }
  }
}

// Whatever a damaged file makes Arrow do: no crash, and an Error that names the file.
TEST_F(ArrowTable, DamagedFile_IsRefusedOrReadButNeverCrashes) {
  const DatasetFolder folder;
  for (const char* name : {"types.parquet", "types.arrow", "types.feather"}) {
    const std::string whole = testing::contents(testing::fixture(name));
    for (size_t at = 0; at < whole.size(); at += 173) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x55);
      const std::string path = folder.write(name, damaged);
      const std::string message = message_of([&] { rows_of(*load_file(path)); });
      EXPECT_TRUE(message.empty() || message.find(name) != std::string::npos) << message;
    }
  }
}

TEST(ChunkCache, KeepsTheLastUsed_AndAlwaysOne) {
  ChunkCache cache(10);
  const auto chunk = [] { return std::shared_ptr<const ArrowChunk>(); };
  int owner = 0, other = 0;
  // A null chunk cannot be told from none: what is kept is seen by the bytes that are free.
  cache.insert(&owner, 0, chunk(), 6);
  cache.insert(&other, 0, chunk(), 4);
  EXPECT_EQ(cache.size(), 2);
  cache.find(&owner, 0);
  cache.insert(&owner, 1, chunk(), 4);  // drops other's
  EXPECT_EQ(cache.size(), 2);
  EXPECT_TRUE(cache.contains(&owner, 0));
  EXPECT_FALSE(cache.contains(&other, 0));
  cache.insert(&other, 1, chunk(), 100);
  EXPECT_EQ(cache.size(), 1);
  EXPECT_TRUE(cache.contains(&other, 1));
  cache.erase(&other);
  EXPECT_EQ(cache.size(), 0);
}

TEST(ArrowLibrary, MissingOne_IsNamedWithItsRemedy) {
  if (std::filesystem::exists(std::string(COUPLER_BINARY_DIR) + "/lib/libcoupler_arrow.so"))
    GTEST_SKIP() << "built with Apache Arrow";
  const std::string message = message_of([] { load_file(testing::fixture("types.parquet")); });
  EXPECT_TRUE(message.find("libcoupler_arrow.so") != std::string::npos) << message;
  EXPECT_TRUE(message.find("scripts/setup --arrow") != std::string::npos) << message;
}

}  // namespace
}  // namespace coupler::datasets
