#include <coupler/error.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/datasets/dataset_files.h"
#include "refusal.h"

namespace coupler::datasets {
namespace {

using testing::DatasetFolder;
using testing::load_file;
using testing::message_of;
using testing::rows_of;
using testing::types_of;

std::string csv_refusal(const std::string& text, const LoadSettings& settings = {}) {
  const DatasetFolder folder;
  const std::string path = folder.write("a.csv", text);
  const std::string message =
      testing::refusal_of(ErrorCode::kIo, [&] { rows_of(*load_file(path, settings)); });
  return message.starts_with(path) ? message.substr(path.size()) : message;
}

TEST(CsvTable, File_IsReadAsPyarrowReadsIt) {
  const auto table = load_file(testing::fixture("table.csv"));
  testing::expect_as_pyarrow(*table, "table.csv.expected.json");
  EXPECT_EQ(table->read(3).get<double>("price"), -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(table->place(3).ends_with("table.csv:6")) << table->place(3);
}

// Fields of every kind of character, with several ways of quoting and line ends.
TEST(CsvTable, RandomFields_HaveTheirText) {
  std::mt19937 random(3);
  const auto below = [&](size_t count) { return random() % count; };
  const std::string characters = "ab,;\"\n\r \t1.ü";
  for (const char* end : {"\n", "\r\n", "\r"}) {
    std::vector<std::vector<std::string>> wanted;
    std::string text = "\xef\xbb\xbfx,\"y\",z" + std::string(end);
    for (int row = 0; row < 9000; ++row) {
      std::vector<std::string> fields;
      for (int column = 0; column < 3; ++column) {
        std::string field = column == 0 ? "t" : "";  // never a blank line, never a number
        for (size_t i = below(6); i > 0; --i) {
          const char c = characters[below(characters.size() - 2)];
          field += c;
        }
        if (below(5) == 0) field += "ü";
        const bool must = field.find_first_of(",\"\r\n") != std::string::npos;
        if (must || below(2) == 0) {
          std::string quoted = "\"";
          for (const char c : field) quoted += c == '"' ? "\"\"" : std::string(1, c);
          text += quoted + "\"";
        } else {
          text += field;
        }
        text += column < 2 ? "," : "";
        fields.push_back(field);
      }
      wanted.push_back(fields);
      if (row < 8999) text += end;
    }
    const DatasetFolder folder;
    const auto table = load_file(folder.write("a.csv", text));
    ASSERT_EQ(table->size(), wanted.size());
    for (size_t row = 0; row < wanted.size(); ++row) {
      const Row read = table->read(row);
      ASSERT_EQ(read.get<std::string>("x"), wanted[row][0]) << row;
      ASSERT_EQ(read.get<std::string>("y"), wanted[row][1]) << row;
      ASSERT_EQ(read.get<std::string>("z"), wanted[row][2]) << row;
    }
  }
}

TEST(CsvTable, ColumnWithALateString_IsAStringFromItsFirstRowOn) {
  std::string text = "a,b\n";
  for (int i = 0; i < 30000; ++i) text += fmt::format("{:03},{}\n", i, i);
  text += "x,1.5\n";
  const DatasetFolder folder;
  const std::string path = folder.write("a.csv", text);
  const auto table = load_file(path);
  EXPECT_EQ(types_of(*table).dump(), R"({"a":"string","b":"float64"})");
  EXPECT_EQ(to_string(table->read(7)), R"({"a":"007","b":7.0})");
  const auto strict =
      load_file(path, {.features = {{"a", FeatureType::kInt64}, {"b", FeatureType::kFloat64}}});
  EXPECT_EQ(strict->read(7).get<int>("a"), 7);
  EXPECT_TRUE(message_of([&] {
                strict->read(30000);
              }).starts_with(path + ":30002: column 'a' is not int64: x"));
}

TEST(CsvTable, Dialect_AndNamesOfColumns) {
  const DatasetFolder folder;
  EXPECT_EQ(rows_of(*load_file(folder.write("a.tsv", "a\tb\n1,5\t'x\n"))).dump(),
            R"([{"a":"1,5","b":"'x"}])");
  EXPECT_EQ(rows_of(*load_file(folder.write("a.csv", "'1;2';3\n'';\n"),
                               {.delimiter = ';', .quote = '\'', .column_names = {"a", "b"}}))
                .dump(),
            R"([{"a":"1;2","b":3},{"a":"","b":null}])");
  EXPECT_EQ(load_file(folder.write("b.csv", "a,b\n"))->size(), 0);
  testing::expect_error(ErrorCode::kInvalidArgument, "delimiter and quote must differ",
                        [&] { load_file(folder.path("a.csv"), {.delimiter = '"'}); });
}

TEST(CsvTable, FilesOfOneDataset_ShareTypes) {
  const DatasetFolder folder;
  const std::string one = folder.write("1.csv", "a,b\n007,1\n");
  const std::string two = folder.write("2.csv", "a,b\nx,\n");
  const auto table = load_table(FileFormat::kCsv, {one, two}, {});
  EXPECT_EQ(rows_of(*table).dump(), R"([{"a":"007","b":1},{"a":"x","b":null}])");
  const std::string other = folder.write("3.csv", "a,c\nx,\n");
  EXPECT_EQ(testing::refusal_of(ErrorCode::kIo,
                                [&] {
                                  load_table(FileFormat::kCsv, {one, two, other}, {});
                                }),
            fmt::format("{}: has the columns [a, c], but {} has [a, b]", other, one));
}

TEST(CsvTable, WrongFiles_AreRefusedWithTheirLine) {
  EXPECT_EQ(csv_refusal("a,b\n1,2\n\n1,2,3\n"), ":4: has 3 fields, but there are 2 columns");
  EXPECT_EQ(csv_refusal("a,b\n1,2\n\"x\n\ny\"\n"),
            ":3: has 1 fields on 3 lines, joined by quotes, but there are 2 columns");
  EXPECT_EQ(csv_refusal("a,b\n1,2\n3, \"x\"\n4,\"x\n"), ":4:3: a quote is not closed");
  EXPECT_EQ(csv_refusal("a,b\n1,\xc3\n"), ":2: is not valid UTF-8");
  EXPECT_EQ(csv_refusal("a,b,a\n"), ":1: the column 'a' occurs twice");
  EXPECT_EQ(csv_refusal(""), " is empty");
  EXPECT_EQ(csv_refusal("\n\n"), " is empty");
  EXPECT_EQ(csv_refusal("a,b\n1,2\n", {.features = {{"a", FeatureType::kInt64}}}),
            ": has the columns [a, b], but features has [a]");
}

}  // namespace
}  // namespace coupler::datasets
