// Dataset with LibTorch: batches, and data_loader over it. What tables do is tested in
// core/datasets.
#include <ATen/Functions.h>
#include <coupler/data_loader.h>
#include <coupler/dataset.h>
#include <coupler/error.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "refusal.h"
#include "temporary_folder.h"

namespace coupler {
namespace {

using testing::expect_error;
using testing::message_of;

// n, ids (n % 4 + 1 numbers) and text of n.
Dataset dataset_of(int64_t rows) {
  std::vector<Row> list;
  for (int64_t n = 0; n < rows; ++n)
    list.push_back({{"n", n},
                    {"ids", std::vector<int64_t>(static_cast<size_t>(n % 4 + 1), n)},
                    {"text", std::to_string(n)}});
  return Dataset::from_list(std::move(list));
}

std::vector<int64_t> numbers_in(const Dataset& dataset) {
  std::vector<int64_t> numbers;
  for (const Row& row : dataset) numbers.push_back(row.get<int64_t>("n"));
  return numbers;
}

std::vector<int64_t> elements_of(const at::Tensor& tensor) {
  const at::Tensor all = tensor.contiguous();
  return {all.const_data_ptr<int64_t>(), all.const_data_ptr<int64_t>() + all.numel()};
}

std::vector<int64_t> counted(int64_t begin, int64_t end) {
  std::vector<int64_t> numbers;
  for (; begin < end; ++begin) numbers.push_back(begin);
  return numbers;
}

TEST(Dataset, TakeSkipShardSelect_AreTheRowsOfPython) {
  const Dataset data = dataset_of(10);
  EXPECT_EQ(numbers_in(data.take(3)), counted(0, 3));
  EXPECT_EQ(numbers_in(data.take(30)), counted(0, 10));
  EXPECT_EQ(numbers_in(data.skip(7)), counted(7, 10));
  EXPECT_EQ(numbers_in(data.skip(70)), counted(0, 0));
  EXPECT_EQ(numbers_in(data.shard(4, 0)), counted(0, 3));
  EXPECT_EQ(numbers_in(data.shard(4, 1)), counted(3, 6));
  EXPECT_EQ(numbers_in(data.shard(4, 3)), counted(8, 10));
  EXPECT_EQ(numbers_in(data.select({5, 1})), (std::vector<int64_t>{5, 1}));
  EXPECT_EQ(numbers_in(data.filter([](const Row& row) { return row.get<int>("n") % 5 == 2; })),
            (std::vector<int64_t>{2, 7}));
  EXPECT_EQ(numbers_in(concatenate_datasets({data.take(1), data.skip(9)})),
            (std::vector<int64_t>{0, 9}));
  EXPECT_EQ(data.column_names(), (std::vector<std::string>{"n", "ids", "text"}));
}

TEST(Dataset, ShuffleAndSplit_AreTheSameEverywhereAndLoseNothing) {
  const Dataset data = dataset_of(11);
  // The order of a seed never changes: batch_sampler_test has its numbers.
  EXPECT_EQ(numbers_in(data.shuffle(42)), numbers_in(dataset_of(11).shuffle(42)));
  EXPECT_NE(numbers_in(data.shuffle(42)), numbers_in(data.shuffle(43)));
  auto loader =
      data_loader(data.select_columns({"n"}), {.batch_size = 11, .shuffle = true, .seed = 42});
  EXPECT_EQ(elements_of((*loader.begin())["n"]), numbers_in(data.shuffle(42)));

  const auto [train, test] = data.train_test_split(0.25, 1);
  EXPECT_EQ(train.size(), 8);
  EXPECT_EQ(test.size(), 3);
  std::set<int64_t> all;
  for (const int64_t n : numbers_in(train)) all.insert(n);
  for (const int64_t n : numbers_in(test)) all.insert(n);
  EXPECT_EQ(all.size(), 11);
  const auto [first, last] = data.train_test_split(2, 0, false);
  EXPECT_EQ(numbers_in(first), counted(0, 9));
  EXPECT_EQ(numbers_in(last), counted(9, 11));
  for (const double wrong : {0.0, -1.0, 11.0, 2.5, std::numeric_limits<double>::quiet_NaN()})
    expect_error(ErrorCode::kInvalidArgument, "test_size", [&] { data.train_test_split(wrong); });
  expect_error(ErrorCode::kInvalidArgument, "no shard 2 of 2", [&] { data.shard(2, 2); });
  expect_error(ErrorCode::kInvalidArgument, "row 11 is asked for", [&] { data[11]; });
}

TEST(Dataset, Batch_HasTensorsOfNumbersAndLists) {
  const Dataset data = Dataset::from_list({
      {{"i", 1},
       {"d", 0.5},
       {"b", true},
       {"s", "x"},
       {"l", std::vector<int64_t>{1, 2}},
       {"m", Value::List{std::vector<double>{1, 2}, std::vector<double>{3, 4}}},
       {"w", std::vector<std::string>{"a"}},
       {"bools", Value::List{true, false}}},
      {{"i", 2},
       {"d", 2},
       {"b", false},
       {"s", Value()},
       {"l", std::vector<int64_t>{3, 4}},
       {"m", Value::List{std::vector<double>{5, 6}, std::vector<double>{7, 8}}},
       {"w", Value()},
       {"bools", Value::List{false, true}}},
  });
  const DatasetBatch batch = data.to_tensors();
  EXPECT_EQ(batch.size(), 2);
  EXPECT_TRUE(at::equal(batch["i"], at::tensor(std::vector<int64_t>{1, 2})));
  EXPECT_TRUE(at::equal(batch["d"], at::tensor(std::vector<float>{0.5, 2})));
  EXPECT_EQ(batch["b"].scalar_type(), at::kBool);
  EXPECT_TRUE(at::equal(batch["l"], at::arange(1, 5, at::kLong).view({2, 2})));
  EXPECT_TRUE(at::equal(batch["m"], at::arange(1, 9, at::kFloat).view({2, 2, 2})));
  EXPECT_EQ(batch["bools"].sizes(), (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(batch.strings.at("s"), (std::vector<std::string>{"x", ""}));
  EXPECT_EQ(batch.values.at("w")[0].get<std::vector<std::string>>("w"),
            std::vector<std::string>{"a"});
  EXPECT_EQ(data.with_format({.float_dtype = at::kDouble}).to_tensors()["m"].scalar_type(),
            at::kDouble);
  expect_error(ErrorCode::kInvalidArgument, "the column is not made of numbers",
               [&] { batch["s"]; });
  expect_error(ErrorCode::kInvalidArgument, "its tensors are: b, bools, d, i, l, m",
               [&] { batch["x"]; });
}

TEST(Dataset, Padding_IsThatOfTransformers) {
  const Dataset data = Dataset::from_list({
      {{"ids", std::vector<int64_t>{1, 2, 3}},
       {"labels", std::vector<int64_t>{1}},
       {"x", std::vector<double>{1}}},
      {{"ids", Value::List{}},
       {"labels", std::vector<int64_t>{2, 3}},
       {"x", std::vector<double>{2, 3}}},
  });
  const auto batch = data.with_format({.padding = true,
                                       .padding_value = 9,
                                       .padding_values = {{"labels", -100}},
                                       .pad_to_multiple_of = 2})
                         .to_tensors();
  EXPECT_EQ(elements_of(batch["ids"]), (std::vector<int64_t>{1, 2, 3, 9, 9, 9, 9, 9}));
  EXPECT_EQ(elements_of(batch["labels"]), (std::vector<int64_t>{1, -100, 2, 3}));
  EXPECT_TRUE(at::equal(batch["x"], at::tensor(std::vector<float>{1, 9, 2, 3}).view({2, 2})));
  const auto cut = data.with_format({.padding = true, .max_length = 2}).to_tensors();
  EXPECT_EQ(elements_of(cut["ids"]), (std::vector<int64_t>{1, 2, 0, 0}));
}

TEST(Dataset, WhatIsNoTensor_IsRefusedWithColumnAndRow) {
  const Dataset ragged = dataset_of(3).select({2, 0});
  EXPECT_EQ(
      message_of([&] { ragged.to_tensors(); }),
      "column 'ids' has 1 elements, but 3 are in another row of the batch, in row 1 (row 0 in "
      "memory)\n  hint: pad them: with_format({.padding = true})");
  const Dataset holes = Dataset::from_list({{{"n", 1}}, {{"n", Value()}}});
  EXPECT_TRUE(message_of([&] {
                holes.to_tensors();
              }).starts_with("column 'n' is null in row 1 (row 1 in memory)"));
  const Dataset lists = Dataset::from_list(
      {{{"m", Value::List{std::vector<int64_t>{1}, std::vector<int64_t>{1, 2}}}}});
  EXPECT_TRUE(message_of([&] {
                lists.with_format({.padding = true}).to_tensors();
              }).starts_with("column 'm' has 2 elements, but 1 are in another row"));
  expect_error(ErrorCode::kInvalidArgument, "pad_to_multiple_of is 0",
               [&] { holes.with_format({.pad_to_multiple_of = 0}); });
}

TEST(Dataset, LoaderWithWorkers_HasEveryRowOnce) {
  std::atomic<int> mapped{0};
  const Dataset data = dataset_of(103).map(
      [&](const Row& row) {
        ++mapped;
        return Row{{"twice", 2 * row.get<int64_t>("n")}};
      },
      {.remove_columns = {"ids"}});
  for (const int64_t workers : {0, 3}) {
    auto loader = data_loader(data, {.batch_size = 8, .shuffle = true, .workers = workers});
    mapped = 0;
    std::vector<int64_t> seen;
    for (const auto& batch : loader) {
      EXPECT_TRUE(at::equal(batch["twice"], 2 * batch["n"]));
      EXPECT_EQ(batch.strings.at("text")[0], std::to_string(batch["n"][0].item<int64_t>()));
      for (const int64_t n : elements_of(batch["n"])) seen.push_back(n);
    }
    seen.resize(103);  // the last batch is filled from the epoch's first rows
    EXPECT_EQ(mapped, 104);
    std::sort(seen.begin(), seen.end());
    EXPECT_EQ(seen, counted(0, 103));
  }
}

// A rank reads its rows only, and with the other ranks' each row once, whatever the world's size.
TEST(Dataset, EachRank_ReadsItsRowsOnly) {
  for (const int world : {1, 2, 5}) {
    std::vector<int64_t> all;
    for (int rank = 0; rank < world; ++rank) {
      std::atomic<int> read{0};
      const Dataset data = dataset_of(40).map([&](const Row&) {
        ++read;
        return Row();
      });
      auto loader =
          data_loader(data.select_columns({"n"}),
                      {.batch_size = 40 / world, .shuffle = true, .split_batches = false});
      loader.bind(rank, world, at::kCPU);
      read = 0;
      for (const auto& batch : loader) {
        for (const int64_t n : elements_of(batch["n"])) all.push_back(n);
      }
      EXPECT_EQ(read, 40 / world);
    }
    EXPECT_EQ(all, numbers_in(dataset_of(40).shuffle(0))) << world;
  }
}

TEST(Dataset, MapToTensors_IsStackedByTheLoader) {
  const Dataset data = dataset_of(6);
  auto tensors = data_loader(
      data.map([](const Row& row) { return at::full({2}, row.get<int64_t>("n"), at::kLong); }),
      {.batch_size = 3});
  EXPECT_EQ(elements_of(*tensors.begin()), (std::vector<int64_t>{0, 0, 1, 1, 2, 2}));
  auto examples = data_loader(data.map([](const Row& row) {
    const auto n = at::scalar_tensor(row.get<int64_t>("n"), at::kLong);
    return torch::data::Example<>{n, -n};
  }),
                              {.batch_size = 3, .workers = 2});
  EXPECT_EQ(elements_of((*examples.begin()).target), (std::vector<int64_t>{0, -1, -2}));
  auto collated = data_loader(data.collate([](const std::vector<Row>& rows) {
    return at::scalar_tensor(static_cast<int64_t>(rows.size()), at::kLong);
  }),
                              {.batch_size = 3});
  EXPECT_EQ((*collated.begin()).item<int64_t>(), 3);
  EXPECT_EQ(data.map([](const Row& row) { return row.get<int>("n"); })[4], 4);
}

TEST(Dataset, FunctionThatThrows_NamesTheRow) {
  const auto fails = [](const Row&) -> at::Tensor { throw std::runtime_error("no"); };
  const auto mapped = dataset_of(3).map(fails);
  EXPECT_EQ(message_of([&] { mapped[1]; }),
            "the function of map failed at row 1 (row 1 in memory): no");
  auto loader = data_loader(mapped, {.workers = 1});
  EXPECT_TRUE(message_of([&] { loader.begin(); }).find("row 0") != std::string::npos);
  const auto collated = dataset_of(3).collate(
      [](const std::vector<Row>&) -> at::Tensor { throw std::runtime_error("no"); });
  EXPECT_EQ(message_of([&] {
              collated.get_batch({0, 2});
            }),
            "the function of collate failed with the rows 0, 2: no");
  EXPECT_TRUE(message_of([] {
                data_loader(dataset_of(3), {.dispatch_batches = true});
              }).starts_with("a batch of type coupler::DatasetBatch cannot be sent"));
}

TEST(LoadDataset, FolderWithSplits_IsOpenedByTheirNames) {
  const TemporaryFolder folder("dataset");
  const std::string path = folder.path().string();
  std::ofstream(folder.path() / "train.csv") << "n,text\n1,a\n2,b\n";
  std::ofstream(folder.path() / "test.csv") << "n,text\n3,c\n";
  EXPECT_EQ(numbers_in(load_dataset(path)), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(numbers_in(load_dataset(path, {.split = "test"})), std::vector<int64_t>{3});
  const DatasetDict splits = load_dataset_dict(path);
  EXPECT_EQ(splits.size(), 2);
  EXPECT_EQ(splits.at("test").place(0), path + "/test.csv:2");
  EXPECT_EQ(
      message_of([&] { load_dataset(path, {.split = "trian"}); }),
      path + " has no split 'trian'; did you mean 'train'?\n  hint: its splits are: test, train");
  std::filesystem::create_directory(folder.path() / "empty");
  expect_error(ErrorCode::kIo, "has no data files", [&] { load_dataset(path + "/empty"); });
}

}  // namespace
}  // namespace coupler
