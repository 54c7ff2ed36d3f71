#include "datasets/data_files.h"

#include <coupler/error.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/datasets/dataset_files.h"
#include "refusal.h"

namespace coupler::datasets {
namespace {

using testing::DatasetFolder;
using testing::refusal_of;

// split -> names below the folder
std::map<std::string, std::vector<std::string>> splits_of(const std::vector<std::string>& names) {
  const DatasetFolder folder;
  for (const std::string& name : names) folder.write(name, "");
  std::map<std::string, std::vector<std::string>> splits;
  for (const auto& [split, paths] : find_data_files(folder.path()).splits) {
    for (const std::string& path : paths)
      splits[split].push_back(
          std::filesystem::path(path).lexically_relative(folder.path()).string());
  }
  return splits;
}

using Splits = std::map<std::string, std::vector<std::string>>;

TEST(DataFiles, NamesSayTheSplit) {
  EXPECT_EQ(splits_of({"b.csv", "a.csv", "sub/c.CSV"}),
            (Splits{{"train", {"a.csv", "b.csv", "sub/c.CSV"}}}));
  EXPECT_EQ(
      splits_of({"data/train-00001-of-00002.parquet", "data/train-00000-of-00002.parquet",
                 "data/test-00000-of-00001.parquet", "data/unsupervised-00000-of-00001.parquet",
                 "README.md", ".cache/x.jsonl", "dataset_info.json"}),
      (Splits{{"test", {"data/test-00000-of-00001.parquet"}},
              {"train", {"data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"}},
              {"unsupervised", {"data/unsupervised-00000-of-00001.parquet"}}}));
  EXPECT_EQ(splits_of({"train/data-00000-of-00001.arrow", "test/data-00000-of-00001.arrow",
                       "train/state.json", "dataset_dict.json"}),
            (Splits{{"test", {"test/data-00000-of-00001.arrow"}},
                    {"train", {"train/data-00000-of-00001.arrow"}}}));
  // "latest" and "trainer" are no words of a split; the file's name goes before its folder's.
  EXPECT_EQ(splits_of({"my_train_set.jsonl", "latest.jsonl", "x-val.jsonl", "test/dev.jsonl",
                       "trainer/a.jsonl"}),
            (Splits{{"train", {"my_train_set.jsonl"}},
                    {"validation", {"test/dev.jsonl", "x-val.jsonl"}}}));
}

TEST(DataFiles, FileAndPattern_AreTrain) {
  const DatasetFolder folder;
  const std::string one = folder.write("test.jsonl", ""), two = folder.write("tes[t].jsonl", "");
  EXPECT_EQ(find_data_files(one).splits, (Splits{{"train", {one}}}));
  EXPECT_EQ(find_data_files(two).splits, (Splits{{"train", {two}}}));
  EXPECT_EQ(find_data_files(folder.path("*.jsonl")).splits, (Splits{{"train", {two, one}}}));
}

TEST(DataFiles, WrongPaths_AreRefused) {
  const DatasetFolder folder;
  const std::string known =
      "; the known ones are .jsonl, .ndjson, .json, .csv, .tsv, .parquet, .arrow, .feather and "
      ".ipc";
  const auto refusal = [&](ErrorCode code, const std::string& name) {
    return refusal_of(code, [&] { find_data_files(folder.path(name)); });
  };
  folder.write("none/README.md", "");
  EXPECT_EQ(refusal(ErrorCode::kIo, "none"),
            "the folder " + folder.path("none") + " has no data files" + known);
  EXPECT_EQ(refusal(ErrorCode::kIo, "*.csv"), "no file matches " + folder.path("*.csv"));
  EXPECT_EQ(refusal(ErrorCode::kInvalidArgument, "a.xlsx"),
            folder.path("a.xlsx") + " has the unknown ending '.xlsx'" + known);
  EXPECT_EQ(refusal(ErrorCode::kInvalidArgument, "a.jsonl.gz"),
            folder.path("a.jsonl.gz") + " is compressed, so that its rows cannot be found");
  folder.write("mixed/a.csv", "");
  folder.write("mixed/b.jsonl", "");
  EXPECT_EQ(refusal(ErrorCode::kInvalidArgument, "mixed"),
            "the files of a dataset differ in format: " + folder.path("mixed/a.csv") + " and " +
                folder.path("mixed/b.jsonl"));
}

}  // namespace
}  // namespace coupler::datasets
