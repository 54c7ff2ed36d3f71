// Dataset: rows on disk, under the names of Hugging Face datasets.
//
//   auto data = coupler::load_dataset("reviews/*.jsonl").shuffle(42);
//   auto [train, test] = data.train_test_split(0.1);
//   auto ids = train.map([&](const coupler::Row& row) {
//     return coupler::Row{{"input_ids", encode(row.get<std::string>("text"))}};
//   }, {.remove_columns = {"text"}});
//   auto loader = coupler::data_loader(ids.with_format({.padding = true}), {.batch_size = 8});
//   for (auto& batch : loader) train_on(batch["input_ids"], batch["label"]);
//
// Files are mapped, not read into memory; a row is read when it is needed, and a loader reads only
// its rank's. A Dataset is an immutable handle: copies share the files, functions that change it
// return another, and any thread may read. Functions given to map and filter therefore have to be
// safe to call from several threads if the loader has workers.
//
// Every order is a function of the arguments alone, so it is the same on every rank.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>
#include <coupler/detail/batch_slots.h>
#include <coupler/nested.h>
#include <coupler/row.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace coupler {

namespace datasets {
class Table;
}

// How files are read.
struct LoadDatasetOptions {
  // Which split: "train", "validation", "test", or NAME of files NAME-00000-of-00002. A single file
  // and the files of a pattern are "train".
  std::string split = "train";
  // The columns of JSON and CSV files. Without them, load_dataset reads all rows once to find them,
  // and so finds every error in the files; with them, it only looks for where rows begin, and an
  // error is found when its row is read. Parquet and Arrow files have their own.
  std::vector<Feature> features = {};
  // Of CSV files. 0: a tab for .tsv, else a comma.
  char delimiter = 0;
  char quote = '"';
  // The names of a CSV file's columns if its first row does not have them.
  std::vector<std::string> column_names = {};
  // Memory for decoded row groups of Parquet files, of this process; at least one is kept. Rows
  // that are read in a random order from files that do not fit are decoded over and over: store
  // such data as Arrow IPC files.
  uint64_t cache_bytes = uint64_t{1} << 30;
};

// How columns become tensors. bool, integers and floating point become kBool, kLong and
// float_dtype; lists of these become further dimensions. Other columns stay as they are.
struct TensorFormat {
  // Lists of different lengths are padded at the end to the longest of the batch; otherwise they
  // are an error. For lists of numbers, not for lists of lists.
  bool padding = false;
  double padding_value = 0;
  std::map<std::string, double> padding_values = {};  // by column, such as {"labels", -100}
  int64_t pad_to_multiple_of = 1;
  int64_t max_length = 0;  // lists of numbers are cut to it; 0: not at all
  at::ScalarType float_dtype = at::kFloat;
};

// The rows of a batch, by columns. Its tensors have the rows as their first dimension and move to
// the loop's device.
struct DatasetBatch {
  std::map<std::string, at::Tensor> tensors;                // numbers, and lists of numbers
  std::map<std::string, std::vector<std::string>> strings;  // "" where it is null
  std::map<std::string, std::vector<Value>> values;         // all others: structs, lists of strings
  size_t rows = 0;                                          // their number

  // A column's tensor. Throws Error(kInvalidArgument) naming the columns that are tensors.
  const at::Tensor& operator[](std::string_view column) const;
  size_t size() const { return rows; }
};

// The batch as a nested structure: only its tensors.
template <>
struct NestedFields<DatasetBatch> {
  // Its members that have tensors.
  static constexpr auto fields = std::make_tuple(nested_field("tensors", &DatasetBatch::tensors));
};

namespace detail {

// The ranks that receive a batch would not know its columns: dispatch_batches refuses it.
template <>
inline constexpr bool has_tensors_v<DatasetBatch> = true;

}  // namespace detail

// Options of Dataset::map.
struct MapOptions {
  std::vector<std::string> remove_columns = {};  // of the rows that the function got
};

template <class Result>
class MappedDataset;
template <class Batch>
class CollatedDataset;
struct TrainTestSplit;

// See the top of this file. Functions that return a Dataset copy no rows; all throw
// Error(kInvalidArgument) for a wrong argument. Reading a row throws Error(kIo) naming file and
// line if the file has been changed or is damaged.
class Dataset {
 public:
  // For data_loader: batches of whole columns.
  using BatchType = DatasetBatch;
  using BatchRequestType = c10::ArrayRef<size_t>;

  // Rows in memory. A column that a row lacks is null. Throws Error(kInvalidArgument) if a column's
  // types exclude each other.
  static Dataset from_list(std::vector<Row> rows);

  // The number of rows.
  size_t size() const;
  const std::vector<Feature>& features() const;
  std::vector<std::string> column_names() const;

  // One row, from 0. Throws Error(kInvalidArgument) if there is none.
  Row operator[](size_t row) const;
  // Where a row comes from: "reviews.jsonl:17".
  std::string place(size_t row) const;

  // Columns. Parquet and Arrow files do not read the others.
  Dataset select_columns(const std::vector<std::string>& columns) const;
  Dataset remove_columns(const std::vector<std::string>& columns) const;
  Dataset rename_column(const std::string& from, const std::string& to) const;

  // Calls the function with each row, when it is read. If it returns a Row, its columns are added
  // to the row or replace those of the same name, and the result is a Dataset; all rows must get
  // the same columns, of the types that the first row has, which is mapped at once. If it returns
  // anything else, such as a tensor or a torch::data::Example of tensors, the result is a
  // MappedDataset. An exception becomes an Error that names the row, with the original nested in
  // it.
  template <class Function>
  auto map(Function function, const MapOptions& options = {}) const;

  // A collate function: makes each batch of its rows, std::vector<Row>. Called by the thread that
  // reads the batch.
  template <class Function>
  auto collate(Function function) const;

  // The rows for which the function returns true. Reads all rows at once.
  Dataset filter(const std::function<bool(const Row&)>& function) const;

  // All rows in another order. The order of a seed is that of data_loader's first epoch.
  Dataset shuffle(uint64_t seed) const;
  // Rows by their numbers, in this order; they may repeat.
  Dataset select(std::vector<size_t> indices) const;
  // The first `count` rows, or those after them; all of these if there are fewer.
  Dataset take(size_t count) const;
  Dataset skip(size_t count) const;
  // The index-th of num_shards parts of consecutive rows; the first ones have one more if the rows
  // cannot be divided.
  Dataset shard(size_t num_shards, size_t index) const;
  // test_size: a fraction if it is below 1, which is rounded up, else a number of rows. Without
  // shuffle, the last rows are for the test. Neither part may be empty.
  TrainTestSplit train_test_split(double test_size = 0.25, uint64_t seed = 0,
                                  bool shuffle = true) const;

  // The same rows, whose batches are made in this way. Throws for padding to a multiple below 1 and
  // a negative max_length.
  Dataset with_format(TensorFormat format) const;

  // How batches are made.
  const TensorFormat& format() const { return format_; }

  // The rows with these numbers as a batch. Throws Error(kInvalidArgument) naming column and row
  // for lists of different lengths and for nulls in columns of numbers.
  DatasetBatch get_batch(c10::ArrayRef<size_t> indices) const;
  // All rows as one batch.
  DatasetBatch to_tensors() const;

  class Iterator;
  // Over the rows, in order.
  Iterator begin() const;
  Iterator end() const;

  // Internal: any table, and what a Dataset of the same format is made of.
  explicit Dataset(std::shared_ptr<const datasets::Table> table, TensorFormat format = {});
  const std::shared_ptr<const datasets::Table>& table() const { return table_; }

 private:
  Dataset map_rows(std::function<Row(const Row&)> function, const MapOptions& options) const;
  Dataset of(std::shared_ptr<const datasets::Table> table) const;

  std::shared_ptr<const datasets::Table> table_;
  TensorFormat format_;
};

// Iterates over the rows of a Dataset; each is read when the iterator is dereferenced.
class Dataset::Iterator {
 public:
  // Required by std::iterator_traits.
  using iterator_category = std::input_iterator_tag;
  using value_type = Row;
  using difference_type = std::ptrdiff_t;
  using pointer = void;
  using reference = Row;

  // At a row of the Dataset, which has to stay.
  Iterator(const Dataset* dataset, size_t row) : dataset_(dataset), row_(row) {}
  // Reads the row. Throws what Dataset::operator[] throws.
  Row operator*() const { return (*dataset_)[row_]; }
  // Advances to the next row.
  Iterator& operator++() {
    ++row_;
    return *this;
  }
  // Likewise.
  void operator++(int) { ++*this; }
  // Of iterators over the same Dataset.
  bool operator==(const Iterator& other) const { return row_ == other.row_; }

 private:
  const Dataset* dataset_;
  size_t row_;
};

// What train_test_split returns: auto [train, test] = …
struct TrainTestSplit {
  Dataset train;  // the rows to train on
  Dataset test;   // those to test with
};

// The splits of a dataset by their names.
using DatasetDict = std::map<std::string, Dataset>;

// Opens one split. path: a file, a pattern such as "data/*.csv", or a folder, whose files' and
// subfolders' names say the split, as on the Hugging Face hub: train-00000-of-00002.parquet,
// test.csv, validation/a.jsonl. Without such names all files are "train". Files are JSON lines
// (.jsonl, .ndjson, .json; a .json file may have an array of objects instead), CSV (.csv, .tsv),
// Parquet (.parquet), or Arrow IPC files and streams (.arrow, .feather, .ipc); they are read in the
// order of their names. Throws Error(kIo) naming a file, and the line if it has one, that cannot be
// read; Error(kInvalidArgument) for a split that does not exist; Error(kUnsupported) for Parquet
// and Arrow files in a build without Arrow.
Dataset load_dataset(const std::string& path, const LoadDatasetOptions& options = {});

// Opens all splits. options.split is ignored.
DatasetDict load_dataset_dict(const std::string& path, const LoadDatasetOptions& options = {});

// The rows of all, one after another. They need the same columns; integers become floating point if
// a column has both. The first one's format is kept.
Dataset concatenate_datasets(const std::vector<Dataset>& datasets);

namespace detail {

// Reads a row and calls the function with it; an exception of the function becomes an Error that
// names the row.
void call_with_row(const Dataset& dataset, size_t row,
                   const std::function<void(const Row&)>& function);
// Calls the function with the rows; an exception becomes an Error that names them.
void call_with_rows(const Dataset& dataset, c10::ArrayRef<size_t> rows,
                    const std::function<void(std::vector<Row>)>& function);

}  // namespace detail

// What a function makes of each row of a Dataset, for data_loader, which stacks tensors and
// examples of tensors. As thread-safe as the function, of which every worker of a loader has a
// copy.
template <class Result>
class MappedDataset {
 public:
  // For data_loader.
  using BatchType = std::vector<Result>;
  using BatchRequestType = c10::ArrayRef<size_t>;

  // See Dataset::map.
  MappedDataset(Dataset dataset, std::function<Result(const Row&)> function)
      : dataset_(std::move(dataset)), function_(std::move(function)) {}

  // The number of rows.
  size_t size() const { return dataset_.size(); }

  // What the function returns for one row, and for some.
  Result operator[](size_t row) const { return std::move(get_batch({row}).front()); }
  std::vector<Result> get_batch(c10::ArrayRef<size_t> indices) const {
    std::vector<Result> results;
    results.reserve(indices.size());
    for (const size_t row : indices) {
      detail::call_with_row(dataset_, row,
                            [&](const Row& read) { results.push_back(function_(read)); });
    }
    return results;
  }

 private:
  Dataset dataset_;
  std::function<Result(const Row&)> function_;
};

// The rows of a Dataset with a collate function, for data_loader. As thread-safe as the function,
// of which every worker of a loader has a copy.
template <class Batch>
class CollatedDataset {
 public:
  // For data_loader.
  using BatchType = Batch;
  using BatchRequestType = c10::ArrayRef<size_t>;

  // See Dataset::collate.
  CollatedDataset(Dataset dataset, std::function<Batch(std::vector<Row>)> function)
      : dataset_(std::move(dataset)), function_(std::move(function)) {}

  // The number of rows.
  size_t size() const { return dataset_.size(); }

  // What the function makes of the rows with these numbers.
  Batch get_batch(c10::ArrayRef<size_t> indices) const {
    std::vector<Batch> batch;  // one
    detail::call_with_rows(dataset_, indices, [&](std::vector<Row> rows) {
      batch.push_back(function_(std::move(rows)));
    });
    return std::move(batch.front());
  }

 private:
  Dataset dataset_;
  std::function<Batch(std::vector<Row>)> function_;
};

template <class Function>
auto Dataset::map(Function function, const MapOptions& options) const {
  using Result = std::decay_t<std::invoke_result_t<Function&, const Row&>>;
  if constexpr (std::is_same_v<Result, Row>) {
    return map_rows(std::move(function), options);
  } else {
    return MappedDataset<Result>(*this, std::move(function));
  }
}

template <class Function>
auto Dataset::collate(Function function) const {
  using Batch = std::decay_t<std::invoke_result_t<Function&, std::vector<Row>>>;
  return CollatedDataset<Batch>(*this, std::move(function));
}

}  // namespace coupler
