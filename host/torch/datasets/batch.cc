#include "datasets/batch.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "datasets/features.h"
#include "datasets/table.h"

namespace coupler {

const at::Tensor& DatasetBatch::operator[](std::string_view column) const {
  const auto found = tensors.find(std::string(column));
  if (found != tensors.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  const bool other = strings.contains(std::string(column)) || values.contains(std::string(column));
  fail_argument(
      fmt::format("the batch has no tensor '{}'{}", for_message(column),
                  other ? ": the column is not made of numbers" : did_you_mean(column, names)),
      column, fmt::format("its tensors are: {}", fmt::join(names, ", ")));
}

namespace datasets {
namespace {

// A column of some rows.
class ColumnReader {
 public:
  ColumnReader(const Table& table, const std::vector<size_t>& numbers, const std::vector<Row>& rows,
               size_t column, const TensorFormat& format)
      : table_(table), numbers_(numbers), rows_(rows), column_(column), format_(format) {
    type_ = table.features()[column];
    // Where no row of the files had a value, a function may have made one.
    for (const Row& row : rows) {
      if (!merge(type_, row.value(column)))
        fail_argument(fmt::format("column '{}' has values of different types in one batch",
                                  for_message(type_.name)),
                      type_.name, "return one type for all rows in map");
    }
    for (element_ = &type_; element_->type == FeatureType::kList; element_ = &element_->of[0])
      ++depth_;
  }
  ColumnReader(const ColumnReader&) = delete;
  ColumnReader& operator=(const ColumnReader&) = delete;

  const std::string& name() const { return type_.name; }
  const Feature& type() const { return type_; }

  bool is_numeric() const {
    return element_->type == FeatureType::kBool || element_->type == FeatureType::kInt64 ||
           element_->type == FeatureType::kFloat64;
  }

  at::Tensor tensor() const {
    const std::vector<int64_t> shape = row_shape();
    std::vector<int64_t> sizes = {static_cast<int64_t>(rows_.size())};
    sizes.insert(sizes.end(), shape.begin(), shape.end());
    if (element_->type == FeatureType::kBool) return filled<bool>(sizes, at::kBool);
    if (element_->type == FeatureType::kInt64) return filled<int64_t>(sizes, at::kLong);
    return filled<double>(sizes, at::kDouble).to(format_.float_dtype);
  }

 private:
  [[noreturn]] void refuse(size_t row, const std::string& problem, const std::string& hint) const {
    fail_argument(fmt::format("column '{}' {} in row {} ({})", for_message(name()), problem,
                              numbers_[row], table_.place(numbers_[row])),
                  name(), hint);
  }

  // The dimensions of every row: of the first one or, if lists are padded, of the longest.
  std::vector<int64_t> row_shape() const {
    if (depth_ == 0) return {};
    if (depth_ == 1) {
      int64_t longest = 0;
      for (const Row& row : rows_) longest = std::max(longest, kept(row.value(column_)));
      if (format_.padding) {
        const int64_t step = format_.pad_to_multiple_of;
        longest = (longest + step - 1) / step * step;
      }
      return {longest};
    }
    std::vector<int64_t> shape;
    Value value = rows_.front().value(column_);
    for (int level = 0; level < depth_; ++level) {
      shape.push_back(static_cast<int64_t>(value.size()));
      if (value.size() == 0) {
        shape.resize(static_cast<size_t>(depth_), 0);
        break;
      }
      Value first = value.get<Value::List>().front();
      value = std::move(first);
    }
    return shape;
  }

  // The length of a list of numbers after it was cut.
  int64_t kept(const Value& list) const {
    const auto length = static_cast<int64_t>(list.size());
    return format_.max_length > 0 ? std::min(length, format_.max_length) : length;
  }

  template <class T>
  at::Tensor filled(const std::vector<int64_t>& sizes, at::ScalarType dtype) const {
    const auto custom = format_.padding_values.find(name());
    const T padding = static_cast<T>(custom == format_.padding_values.end() ? format_.padding_value
                                                                            : custom->second);
    at::Tensor result = at::empty(sizes, at::TensorOptions(dtype));
    T* out = result.data_ptr<T>();
    for (size_t row = 0; row < rows_.size(); ++row)
      fill(row, rows_[row].value(column_), sizes.data() + 1, depth_, padding, out);
    return result;
  }

  // Appends what a value has, in the order of a tensor's elements.
  template <class T>
  void fill(size_t row, const Value& value, const int64_t* shape, int depth, T padding,
            T*& out) const {
    if (value.is_null())
      refuse(row, "is null",
             "a tensor of numbers has no null: drop such rows with filter, or replace it with map");
    if (depth == 0) {
      *out++ = value.get<T>(name());
      return;
    }
    const int64_t length = depth == 1 ? kept(value) : static_cast<int64_t>(value.size());
    const bool pads = format_.padding && depth_ == 1;
    if (length != shape[0] && !pads)
      refuse(
          row,
          fmt::format("has {} elements, but {} are in another row of the batch,", length, shape[0]),
          depth_ == 1 ? "pad them: with_format({.padding = true})"
                      : "give all lists of lists one shape");
    value.visit([&](const auto& held) {
      using Held = std::decay_t<decltype(held)>;
      if constexpr (std::is_same_v<Held, Value::List>) {
        for (int64_t i = 0; i < length; ++i)
          fill(row, held[static_cast<size_t>(i)], shape + 1, depth - 1, padding, out);
      } else if constexpr (std::is_same_v<Held, std::vector<int64_t>> ||
                           std::is_same_v<Held, std::vector<double>>) {
        out = std::transform(held.begin(), held.begin() + length, out,
                             [](auto number) { return static_cast<T>(number); });
      }
    });
    for (int64_t i = length; depth == 1 && i < shape[0]; ++i) *out++ = padding;
  }

  const Table& table_;
  const std::vector<size_t>& numbers_;
  const std::vector<Row>& rows_;
  const size_t column_;
  const TensorFormat& format_;
  Feature type_;
  const Feature* element_;  // of the innermost list
  int depth_ = 0;           // levels of lists
};

}  // namespace

DatasetBatch make_batch(const Table& table, const std::vector<size_t>& numbers,
                        const std::vector<Row>& rows, const TensorFormat& format) {
  DatasetBatch batch;
  batch.rows = rows.size();
  for (size_t column = 0; column < table.features().size(); ++column) {
    const ColumnReader reader(table, numbers, rows, column, format);
    if (reader.is_numeric() && !rows.empty()) {
      batch.tensors[reader.name()] = reader.tensor();
    } else if (reader.type().type == FeatureType::kString) {
      auto& strings = batch.strings[reader.name()];
      for (const Row& row : rows) {
        const Value& value = row.value(column);
        strings.push_back(value.is_null() ? "" : value.get<std::string>());
      }
    } else {
      auto& values = batch.values[reader.name()];
      for (const Row& row : rows) values.push_back(row.value(column));
    }
  }
  return batch;
}

}  // namespace datasets
}  // namespace coupler
