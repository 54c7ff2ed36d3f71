#include "datasets/views.h"

#include <coupler/error.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/datasets/dataset_files.h"
#include "refusal.h"

namespace coupler::datasets {
namespace {

using testing::message_of;
using testing::refusal_of;
using testing::rows_of;

TablePtr numbers(int count) {
  std::vector<Row> rows;
  for (int i = 0; i < count; ++i) rows.push_back({{"n", i}, {"text", std::to_string(i)}});
  return table_of(std::move(rows));
}

std::string view_refusal(const std::function<void()>& action) {
  return refusal_of(ErrorCode::kInvalidArgument, action);
}

TEST(Views, RowsAndColumns_AreThoseAskedFor) {
  const auto table = numbers(5);
  EXPECT_EQ(rows_of(*select_rows(table, {4, 0, 4})).dump(),
            R"([{"n":4,"text":"4"},{"n":0,"text":"0"},{"n":4,"text":"4"}])");
  const auto slice = slice_rows(table, 3, 2);
  EXPECT_EQ(rows_of(*select_columns(slice, {"text"})).dump(), R"([{"text":"3"},{"text":"4"}])");
  EXPECT_EQ(rows_of(*remove_columns(slice, {"text"})).dump(), R"([{"n":3},{"n":4}])");
  const auto renamed = rename_column(select_columns(slice, {"text", "n"}), "n", "m");
  EXPECT_EQ(rows_of(*renamed).dump(), R"([{"text":"3","m":3},{"text":"4","m":4}])");
  EXPECT_EQ(rows_of(*select_columns(renamed, {"m"})).dump(), R"([{"m":3},{"m":4}])");
  EXPECT_EQ(slice->place(1), "row 4 in memory");
}

TEST(Views, Concatenation_WidensTypes) {
  const auto one = table_of({{{"a", 1}, {"b", "x"}}});
  const auto two = table_of({{{"b", Value()}, {"a", 0.5}}, {{"a", 2}, {"b", Value()}}});
  const auto both = concatenate({one, two});
  EXPECT_EQ(rows_of(*both).dump(), R"([{"a":1.0,"b":"x"},{"a":0.5,"b":null},{"a":2.0,"b":null}])");
  EXPECT_EQ(both->read(0)["a"].type(), FeatureType::kFloat64);
  EXPECT_EQ(rows_of(*select_columns(both, {"a"})).dump(), R"([{"a":1.0},{"a":0.5},{"a":2.0}])");
  EXPECT_EQ(both->place(2), "row 1 in memory");
}

TEST(Views, Map_AddsReplacesAndRemovesColumns) {
  int calls = 0;
  const auto mapped =
      map_rows(numbers(3),
               [&](const Row& row) {
                 ++calls;
                 return Row{{"twice", 2 * row.get<int>("n")}, {"n", row.get<int>("n") + 0.5}};
               },
               {"text"});
  EXPECT_EQ(calls, 1);  // lazy, except for the first row
  EXPECT_EQ(rows_of(*mapped).dump(),
            R"([{"n":0.5,"twice":0},{"n":1.5,"twice":2},{"n":2.5,"twice":4}])");
  EXPECT_EQ(rows_of(*select_columns(mapped, {"twice"})).dump(),
            R"([{"twice":0},{"twice":2},{"twice":4}])");
  EXPECT_EQ(map_rows(numbers(0), [](const Row&) { return Row(); }, {})->size(), 0);
}

TEST(Views, FunctionThatThrows_IsAnErrorThatNamesTheRow) {
  const testing::DatasetFolder folder;
  const std::string path = folder.write("a.jsonl", "{\"n\": 0}\n\n{\"n\": 1}\n");
  const auto table = testing::load_file(path);
  const auto mapped = map_rows(table,
                               [](const Row& row) {
                                 if (row.get<int>("n") == 1) throw std::runtime_error("no ones");
                                 return Row();
                               },
                               {});
  EXPECT_EQ(message_of([&] { mapped->read(1); }),
            "the function of map failed at row 1 (" + path + ":3): no ones");
  EXPECT_EQ(message_of([&] {
              filter_rows(*table, [](const Row& row) { return row.get<bool>("n"); });
            }).substr(0, 48),
            "the function of filter failed at row 0 (" + path.substr(0, 8));
  EXPECT_EQ(filter_rows(*table, [](const Row& row) { return row.get<int>("n") == 1; }),
            std::vector<size_t>{1});
}

TEST(Views, RowsThatDifferFromTheFirst_AreRefused) {
  const auto mapped = [&](const std::function<Row(int)>& function) {
    const auto table = map_rows(
        numbers(2), [function](const Row& row) { return function(row.get<int>("n")); }, {"text"});
    return view_refusal([&] { table->read(1); });
  };
  const std::string start = "what map returned for row 1 (row 1 in memory) ";
  EXPECT_EQ(mapped([](int n) {
              return n == 0 ? Row{{"x", 1}} : Row();
            }),
            start + "lacks the column 'x', which the first row has");
  EXPECT_EQ(mapped([](int n) {
              return n == 1 ? Row{{"x", 1}} : Row();
            }),
            start + "has the columns x, but only these are in the first row: n");
  EXPECT_EQ(mapped([](int n) {
              return n == 0 ? Row{{"x", 1}} : Row{{"x", "1"}};
            }),
            start + "is not int64, as the first row, in column 'x'");
  EXPECT_EQ(mapped([](int n) {
              return n == 0 ? Row{{"x", Value()}} : Row{{"x", "1"}};
            }),
            "accepted");
}

TEST(Views, WrongArguments_AreRefused) {
  const auto table = numbers(2);
  EXPECT_EQ(view_refusal([&] { select_rows(table, {2}); }),
            "the dataset has 2 rows, but row 2 is selected");
  EXPECT_EQ(view_refusal([&] { select_columns(table, {"texts"}); }),
            "the dataset has no column 'texts'; did you mean 'text'?");
  EXPECT_EQ(view_refusal([&] { rename_column(table, "n", "text"); }),
            "column 'n' cannot be renamed to 'text', which exists already");
  EXPECT_EQ(view_refusal([&] {
              concatenate({table, select_columns(table, {"n"})});
            }),
            "datasets with other columns cannot be concatenated: [n, text] and [n]");
  EXPECT_EQ(view_refusal([&] {
              concatenate({table, table_of({{{"n", "x"}, {"text", "x"}}})});
            }),
            "datasets with other types cannot be concatenated: column 'n' has different ones");
  testing::expect_error(ErrorCode::kInvalidArgument, "there are no datasets",
                        [] { concatenate({}); });
  EXPECT_EQ(view_refusal([&] {
              table_of({{{"a", 1}}, {{"a", "x"}}});
            }),
            "column 'a' has another type in row 1 than in those before it");
}

}  // namespace
}  // namespace coupler::datasets
