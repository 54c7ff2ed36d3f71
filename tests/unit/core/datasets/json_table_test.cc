#include <coupler/error.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "core/datasets/dataset_files.h"
#include "datasets/watched_file.h"
#include "refusal.h"

namespace coupler::datasets {
namespace {

using testing::DatasetFolder;
using testing::load_file;
using testing::message_of;
using testing::rows_of;
using testing::types_of;

std::string json_refusal(const std::string& text, const std::string& name = "a.jsonl",
                         const LoadSettings& settings = {}) {
  const DatasetFolder folder;
  const std::string path = folder.write(name, text);
  const std::string message =
      testing::refusal_of(ErrorCode::kIo, [&] { rows_of(*load_file(path, settings)); });
  return message.starts_with(path) ? message.substr(path.size()) : message;
}

TEST(JsonTable, Lines_AreReadAsPyarrowReadsThem) {
  testing::expect_as_pyarrow(*load_file(testing::fixture("table.jsonl")),
                             "table.jsonl.expected.json");
}

TEST(JsonTable, Array_HasTheRowsOfItsLines) {
  const DatasetFolder folder;
  const std::string array = folder.write(
      "a.json",
      "\n[ {\"a\": \"x,]\\\\\\\"}{\", \"b\": [[1], []]}\n,{\"b\": null,\"a\":\"\"} , {} ]\n ");
  const std::string lines = folder.write(
      "a.jsonl", "{\"a\": \"x,]\\\\\\\"}{\", \"b\": [[1], []]}\r\n \n{\"b\": null,\"a\":\"\"}\n{}");
  const auto table = load_file(array);
  ASSERT_EQ(table->size(), 3);
  EXPECT_EQ(rows_of(*table), rows_of(*load_file(lines)));
  EXPECT_EQ(types_of(*table).dump(), R"({"a":"string","b":"list<list<int64>>"})");
  EXPECT_EQ(table->place(1), array + ":3");
}

// Many rows, so that several threads look at them, against the library's own values.
TEST(JsonTable, RandomRows_HaveTheirValues) {
  std::mt19937 random(7);
  const auto below = [&](int count) { return static_cast<int>(random() % count); };
  std::vector<nlohmann::ordered_json> wanted;
  std::string text;
  for (int i = 0; i < 20000; ++i) {
    auto row = nlohmann::ordered_json::object();
    row["id"] = i;
    row["x"] =
        i < 15000 ? nlohmann::ordered_json(below(100)) : nlohmann::ordered_json(below(100) + 0.5);
    row["s"] = below(3) == 0 ? nlohmann::ordered_json()
                             : nlohmann::ordered_json(std::string(below(20), '"'));
    row["l"] = std::vector<int>(below(4), i);
    if (below(2) == 0) text += "\n";
    text += row.dump() + "\n";
    if (row["x"].is_number_integer()) row["x"] = row["x"].get<double>();  // the column's type
    wanted.push_back(row);
  }
  const DatasetFolder folder;
  const auto table = load_file(folder.write("a.jsonl", text));
  EXPECT_EQ(types_of(*table).dump(),
            R"({"id":"int64","x":"float64","s":"string","l":"list<int64>"})");
  ASSERT_EQ(table->size(), wanted.size());
  for (size_t row = 0; row < wanted.size(); ++row) {
    ASSERT_EQ(nlohmann::ordered_json::parse(to_string(table->read(row))), wanted[row]) << row;
    ASSERT_EQ(table->read(row)["x"].type(), FeatureType::kFloat64);
  }
}

TEST(JsonTable, TypeThatChangesLate_IsRefusedWithItsLine) {
  std::string text;
  for (int i = 0; i < 30000; ++i) text += fmt::format("{{\"a\": {}}}\n", i);
  EXPECT_EQ(json_refusal(text + "{\"a\": \"x\"}\n{\"a\": true}\n"),
            ":30001: column 'a' is int64 so far, but here it has \"x\"");
}

TEST(JsonTable, WrongLines_AreRefusedWithTheirPlace) {
  EXPECT_TRUE(json_refusal("{\"a\": 1}\n\n{\"a\": tru}\n").starts_with(":3:10: syntax error"))
      << json_refusal("{\"a\": 1}\n\n{\"a\": tru}\n");
  EXPECT_TRUE(json_refusal("{\"a\": 1} {\"a\": 2}\n").starts_with(":1:10: syntax error"));
  EXPECT_EQ(json_refusal("{\"a\": 1}\n[1]\n"), ":2: is not an object: [1]");
  EXPECT_EQ(json_refusal("{\"a\": \"\xff\"}\n"), ":1:8: is not valid UTF-8");
  EXPECT_EQ(json_refusal(std::string("{\"a\": 1}\0{}\n", 12)), ":1:9: contains a NUL byte");
  EXPECT_EQ(json_refusal("{\"a\": 1, \"a\": 2}\n"), ":1:1: has the key 'a' twice");
  EXPECT_EQ(json_refusal("{\"a\": [1, \"x\"]}\n"),
            ":1: column 'a' is list<int64> so far, but here it has [1,\"x\"]");
  EXPECT_EQ(json_refusal("{\"a\": " + std::string(100000, '[') + "\n"),
            ":1:1: has more than 64 levels of brackets");
  EXPECT_TRUE(json_refusal("{\"a\": 1e999}\n").find("number overflow") != std::string::npos)
      << json_refusal("{\"a\": 1e999}\n");
  EXPECT_EQ(json_refusal(""), ": has no rows, or none with a column");
  EXPECT_EQ(json_refusal(" \n\n"), ": has no rows, or none with a column");
}

TEST(JsonTable, WrongArrays_AreRefusedWithTheirPlace) {
  EXPECT_EQ(json_refusal("[{\"a\": 1}, {\"a\": 2}", "a.json"),
            ":1: the array that begins here is not closed");
  EXPECT_EQ(json_refusal("[{\"a\": \"", "a.json"), ":1: the array that begins here is not closed");
  EXPECT_EQ(json_refusal("[{\"a\": \"\\", "a.json"),
            ":1: the array that begins here is not closed");
  EXPECT_EQ(json_refusal("[{\"a\": 1},]", "a.json"), ":1:11: an object is expected here");
  EXPECT_EQ(json_refusal("[{\"a\": 1}]\n{", "a.json"), ":2:1: text after the array's end");
  EXPECT_TRUE(json_refusal("[{\"a\": 1} {}]", "a.json").starts_with(":1:11: syntax error"))
      << json_refusal("[{\"a\": 1} {}]", "a.json");
  EXPECT_EQ(json_refusal("[]", "a.json"), ": has no rows, or none with a column");
}

TEST(JsonTable, Features_AreCheckedWhenARowIsRead) {
  const LoadSettings settings{
      .features = {{"a", FeatureType::kInt64}, {"b", FeatureType::kString}}};
  const DatasetFolder folder;
  const auto table =
      load_file(folder.write("a.jsonl", "{\"a\": 1}\n{\"a\": 1.5}\n{\"c\": 1}\nx\n"), settings);
  ASSERT_EQ(table->size(), 4);
  EXPECT_EQ(to_string(table->read(0)), R"({"a":1,"b":null})");
  const auto refusal = [&](size_t row) {
    return message_of([&] { table->read(row); }).substr(folder.path("a.jsonl").size());
  };
  EXPECT_TRUE(refusal(1).starts_with(":2: column 'a' is not int64: 1.5\n")) << refusal(1);
  EXPECT_TRUE(refusal(2).starts_with(":3: there is no column 'c' in features")) << refusal(2);
  EXPECT_TRUE(refusal(3).starts_with(":4:1: syntax error")) << refusal(3);
}

TEST(JsonTable, FilesOfOneDataset_ShareTypes) {
  const DatasetFolder folder;
  const std::string one = folder.write("1.jsonl", "{\"a\": 1}\n");
  const std::string two = folder.write("2.jsonl", "{\"b\": \"x\", \"a\": 0.5}\n");
  const auto table = load_table(FileFormat::kJson, {one, two}, {});
  EXPECT_EQ(rows_of(*table).dump(), R"([{"a":1.0,"b":null},{"a":0.5,"b":"x"}])");
  EXPECT_EQ(table->place(1), two + ":1");
  const std::string three = folder.write("3.jsonl", "{\"b\": 1}\n");
  EXPECT_TRUE(message_of([&] {
                load_table(FileFormat::kJson, {one, two, three}, {});
              }).starts_with(three + ": column 'b' has another type than in " + one + ", " + two));
}

TEST(JsonTable, FileChangedInPlace_IsRefused_AndAReplacedOneIsNot) {
  const DatasetFolder folder;
  const std::string path = folder.write("a.jsonl", "{\"a\": 1}\n{\"a\": 2}\n");
  const auto table = load_file(path);
  folder.write("new", "{\"a\": 3}\n");
  std::filesystem::rename(folder.path("new"), path);
  EXPECT_EQ(rows_of(*table).dump(), R"([{"a":1},{"a":2}])");
  const auto changed = load_file(path);
  std::ofstream(path, std::ios::app) << "{\"a\": 4}\n";
  EXPECT_TRUE(
      message_of([&] { changed->read(0); }).starts_with(path + " was changed after it was opened"));
}

TEST(JsonTable, FileTruncatedWhileInUse_EndsTheProcessWithItsName) {
  const DatasetFolder folder;
  std::string text;
  for (int i = 0; i < 10000; ++i) text += "{\"a\": 1}\n";
  const std::string path = folder.write("a.jsonl", text);
  const auto file = WatchedFile::open(path);
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        std::filesystem::resize_file(path, 0);
        const volatile char last = file->text().back();
        static_cast<void>(last);
      },
      ::testing::ExitedWithCode(1), "a.jsonl was truncated, or its disk failed");
}

TEST(JsonTable, MissingFile_IsRefused) {
  const DatasetFolder folder;
  EXPECT_TRUE(message_of([&] {
                load_file(folder.path("b.jsonl"));
              }).find("b.jsonl: No such file") != std::string::npos);
}

}  // namespace
}  // namespace coupler::datasets
