#include <coupler/dataset.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "data/batch_sampler.h"
#include "datasets/batch.h"
#include "datasets/data_files.h"
#include "datasets/features.h"
#include "datasets/load.h"
#include "datasets/table.h"
#include "datasets/views.h"

namespace coupler {
namespace {

datasets::LoadSettings load_settings(const LoadDatasetOptions& options) {
  return {options.features, options.delimiter, options.quote, options.column_names,
          options.cache_bytes};
}

std::vector<size_t> shuffled_rows(size_t count, uint64_t seed) {
  std::vector<size_t> order;
  data::shuffled_order(count, seed, 0, order);
  return order;
}

}  // namespace

Dataset::Dataset(std::shared_ptr<const datasets::Table> table, TensorFormat format)
    : table_(std::move(table)), format_(std::move(format)) {}

Dataset Dataset::of(std::shared_ptr<const datasets::Table> table) const {
  return Dataset(std::move(table), format_);
}

Dataset Dataset::from_list(std::vector<Row> rows) {
  return Dataset(datasets::table_of(std::move(rows)));
}

size_t Dataset::size() const { return table_->size(); }
const std::vector<Feature>& Dataset::features() const { return table_->features(); }
std::vector<std::string> Dataset::column_names() const {
  return datasets::names_of(table_->features());
}

Row Dataset::operator[](size_t row) const {
  if (row >= size())
    fail_argument(fmt::format("the dataset has {} rows, but row {} is asked for", size(), row),
                  "row", "rows count from 0");
  return table_->read(row);
}

std::string Dataset::place(size_t row) const { return table_->place(row); }

Dataset Dataset::select_columns(const std::vector<std::string>& columns) const {
  return of(datasets::select_columns(table_, columns));
}

Dataset Dataset::remove_columns(const std::vector<std::string>& columns) const {
  return of(datasets::remove_columns(table_, columns));
}

Dataset Dataset::rename_column(const std::string& from, const std::string& to) const {
  return of(datasets::rename_column(table_, from, to));
}

Dataset Dataset::map_rows(std::function<Row(const Row&)> function,
                          const MapOptions& options) const {
  return of(datasets::map_rows(table_, std::move(function), options.remove_columns));
}

Dataset Dataset::filter(const std::function<bool(const Row&)>& function) const {
  return select(datasets::filter_rows(*table_, function));
}

Dataset Dataset::shuffle(uint64_t seed) const { return select(shuffled_rows(size(), seed)); }

Dataset Dataset::select(std::vector<size_t> indices) const {
  return of(datasets::select_rows(table_, std::move(indices)));
}

Dataset Dataset::take(size_t count) const {
  return of(datasets::slice_rows(table_, 0, std::min(count, size())));
}

Dataset Dataset::skip(size_t count) const {
  const size_t first = std::min(count, size());
  return of(datasets::slice_rows(table_, first, size() - first));
}

Dataset Dataset::shard(size_t num_shards, size_t index) const {
  if (index >= num_shards)
    fail_argument(fmt::format("there is no shard {} of {}", index, num_shards), "index",
                  "shards count from 0 to num_shards - 1");
  const size_t each = size() / num_shards, more = size() % num_shards;
  const size_t first = each * index + std::min(index, more);
  return of(datasets::slice_rows(table_, first, each + (index < more ? 1 : 0)));
}

TrainTestSplit Dataset::train_test_split(double test_size, uint64_t seed, bool shuffled) const {
  const double wanted =
      test_size < 1 ? std::ceil(test_size * static_cast<double>(size())) : test_size;
  if (!(wanted >= 1) || wanted >= static_cast<double>(size()) || wanted != std::floor(wanted))
    fail_argument(
        fmt::format("a test_size of {} leaves no rows on one side of {}, or is not a number "
                    "of rows",
                    test_size, size()),
        "test_size", "give a fraction between 0 and 1, or a whole number of rows");
  const auto test = static_cast<size_t>(wanted);
  const size_t train = size() - test;
  if (!shuffled) return {take(train), skip(train)};
  const std::vector<size_t> order = shuffled_rows(size(), seed);
  const auto middle = order.begin() + static_cast<std::ptrdiff_t>(test);
  return {select({middle, order.end()}), select({order.begin(), middle})};
}

Dataset Dataset::with_format(TensorFormat format) const {
  if (format.pad_to_multiple_of < 1 || format.max_length < 0)
    fail_argument(fmt::format("pad_to_multiple_of is {} and max_length {}",
                              format.pad_to_multiple_of, format.max_length),
                  "format",
                  "give a pad_to_multiple_of of at least 1, and a max_length of at least 0");
  return Dataset(table_, std::move(format));
}

DatasetBatch Dataset::get_batch(c10::ArrayRef<size_t> indices) const {
  std::vector<Row> rows;
  rows.reserve(indices.size());
  for (const size_t row : indices) rows.push_back((*this)[row]);
  return datasets::make_batch(*table_, indices.vec(), rows, format_);
}

DatasetBatch Dataset::to_tensors() const {
  std::vector<size_t> all(size());
  std::iota(all.begin(), all.end(), size_t{0});
  return get_batch(all);
}

Dataset::Iterator Dataset::begin() const { return {this, 0}; }
Dataset::Iterator Dataset::end() const { return {this, size()}; }

Dataset load_dataset(const std::string& path, const LoadDatasetOptions& options) {
  const datasets::DataFiles files = datasets::find_data_files(path);
  const auto found = files.splits.find(options.split);
  if (found == files.splits.end()) {
    std::vector<std::string> names;
    for (const auto& [name, paths] : files.splits) names.push_back(name);
    fail_argument(fmt::format("{} has no split '{}'{}", path, for_message(options.split),
                              did_you_mean(options.split, names)),
                  "split", fmt::format("its splits are: {}", fmt::join(names, ", ")));
  }
  return Dataset(datasets::load_table(files.format, found->second, load_settings(options)));
}

DatasetDict load_dataset_dict(const std::string& path, const LoadDatasetOptions& options) {
  const datasets::DataFiles files = datasets::find_data_files(path);
  DatasetDict splits;
  for (const auto& [name, paths] : files.splits)
    splits.emplace(name,
                   Dataset(datasets::load_table(files.format, paths, load_settings(options))));
  return splits;
}

Dataset concatenate_datasets(const std::vector<Dataset>& parts) {
  std::vector<datasets::TablePtr> tables;
  tables.reserve(parts.size());
  for (const Dataset& part : parts) tables.push_back(part.table());
  return Dataset(datasets::concatenate(tables)).with_format(parts.front().format());
}

namespace detail {

void call_with_row(const Dataset& dataset, size_t row,
                   const std::function<void(const Row&)>& function) {
  const Row read = dataset[row];
  datasets::at_row("the function of map", *dataset.table(), row, [&] { function(read); });
}

void call_with_rows(const Dataset& dataset, c10::ArrayRef<size_t> rows,
                    const std::function<void(std::vector<Row>)>& function) {
  std::vector<Row> read;
  read.reserve(rows.size());
  for (const size_t row : rows) read.push_back(dataset[row]);
  try {
    function(std::move(read));
  } catch (const std::exception& error) {
    std::throw_with_nested(Error(ErrorCode::kInvalidArgument,
                                 fmt::format("the function of collate failed with the rows {}: {}",
                                             fmt::join(rows, ", "), error.what()),
                                 {.subject = "collate", .hint = {}}));
  }
}

}  // namespace detail
}  // namespace coupler
