#include "datasets/views.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "datasets/features.h"

namespace coupler::datasets {
namespace {

using SharedNames = std::shared_ptr<const std::vector<std::string>>;

SharedNames shared_names(const std::vector<Feature>& features) {
  return std::make_shared<const std::vector<std::string>>(names_of(features));
}

size_t position_of(const Table& table, const std::string& column) {
  const auto& features = table.features();
  const auto found = std::find_if(features.begin(), features.end(),
                                  [&](const Feature& feature) { return feature.name == column; });
  if (found != features.end()) return static_cast<size_t>(found - features.begin());
  const auto names = names_of(features);
  fail_argument(fmt::format("the dataset has no column '{}'{}", for_message(column),
                            did_you_mean(column, names)),
                column, fmt::format("its columns are: {}", fmt::join(names, ", ")));
}

class MemoryTable : public Table {
 public:
  explicit MemoryTable(std::vector<Row> rows) : rows_(std::move(rows)) {
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (const Merged result = merge(features_, rows_[i]); !result.merged)
        fail_argument(fmt::format("column '{}' has another type in row {} than in those before it",
                                  for_message(result.column), i),
                      result.column, "give a column one type in all rows");
    }
    const SharedNames names = shared_names(features_);
    for (Row& row : rows_) conform(row, features_, names);
  }

  const std::vector<Feature>& features() const override { return features_; }
  size_t size() const override { return rows_.size(); }
  Row read(size_t row) const override { return rows_[row]; }
  std::string place(size_t row) const override { return fmt::format("row {} in memory", row); }

 private:
  std::vector<Row> rows_;
  std::vector<Feature> features_;
};

class RowsView : public Table {
 public:
  RowsView(TablePtr table, std::vector<size_t> rows)
      : RowsView(std::move(table), std::make_shared<const std::vector<size_t>>(std::move(rows))) {}
  RowsView(TablePtr table, std::shared_ptr<const std::vector<size_t>> rows)
      : table_(std::move(table)), rows_(std::move(rows)) {}

  const std::vector<Feature>& features() const override { return table_->features(); }
  size_t size() const override { return rows_->size(); }
  Row read(size_t row) const override { return table_->read((*rows_)[row]); }
  std::string place(size_t row) const override { return table_->place((*rows_)[row]); }
  TablePtr select(const TablePtr&, const std::vector<size_t>& columns) const override {
    return std::make_shared<RowsView>(table_->select(table_, columns), rows_);
  }

 private:
  TablePtr table_;
  std::shared_ptr<const std::vector<size_t>> rows_;
};

class SliceView : public Table {
 public:
  SliceView(TablePtr table, size_t first, size_t count)
      : table_(std::move(table)), first_(first), count_(count) {}

  const std::vector<Feature>& features() const override { return table_->features(); }
  size_t size() const override { return count_; }
  Row read(size_t row) const override { return table_->read(first_ + row); }
  std::string place(size_t row) const override { return table_->place(first_ + row); }
  TablePtr select(const TablePtr&, const std::vector<size_t>& columns) const override {
    return std::make_shared<SliceView>(table_->select(table_, columns), first_, count_);
  }

 private:
  TablePtr table_;
  size_t first_, count_;
};

// Columns of a table that reads them all.
class ColumnsView : public Table {
 public:
  ColumnsView(TablePtr table, std::vector<size_t> columns)
      : table_(std::move(table)), columns_(std::move(columns)) {
    for (const size_t column : columns_) features_.push_back(table_->features()[column]);
    names_ = shared_names(features_);
  }

  const std::vector<Feature>& features() const override { return features_; }
  size_t size() const override { return table_->size(); }
  Row read(size_t row) const override {
    Row whole = table_->read(row);
    std::vector<Value> values;
    values.reserve(columns_.size());
    for (const size_t column : columns_) values.push_back(std::move(whole.value(column)));
    return {names_, std::move(values)};
  }
  std::string place(size_t row) const override { return table_->place(row); }
  TablePtr select(const TablePtr&, const std::vector<size_t>& columns) const override {
    std::vector<size_t> inner;
    inner.reserve(columns.size());
    for (const size_t column : columns) inner.push_back(columns_[column]);
    return table_->select(table_, inner);
  }

 private:
  TablePtr table_;
  std::vector<size_t> columns_;
  std::vector<Feature> features_;
  SharedNames names_;
};

class RenamedView : public Table {
 public:
  RenamedView(TablePtr table, std::vector<Feature> features)
      : table_(std::move(table)), features_(std::move(features)), names_(shared_names(features_)) {}

  const std::vector<Feature>& features() const override { return features_; }
  size_t size() const override { return table_->size(); }
  Row read(size_t row) const override {
    Row whole = table_->read(row);
    std::vector<Value> values;
    values.reserve(whole.size());
    for (size_t i = 0; i < whole.size(); ++i) values.push_back(std::move(whole.value(i)));
    return {names_, std::move(values)};
  }
  std::string place(size_t row) const override { return table_->place(row); }
  TablePtr select(const TablePtr&, const std::vector<size_t>& columns) const override {
    std::vector<Feature> kept;
    kept.reserve(columns.size());
    kept.reserve(columns.size());
    for (const size_t column : columns) kept.push_back(features_[column]);
    return std::make_shared<RenamedView>(table_->select(table_, columns), std::move(kept));
  }

 private:
  TablePtr table_;
  std::vector<Feature> features_;
  SharedNames names_;
};

class Concatenated : public Table {
 public:
  // The tables have columns of these names, in this order.
  Concatenated(std::vector<TablePtr> tables, std::vector<Feature> features)
      : tables_(std::move(tables)), features_(std::move(features)) {
    for (const TablePtr& table : tables_) {
      ends_.push_back((ends_.empty() ? 0 : ends_.back()) + table->size());
      widens_.push_back(table->features() != features_);
    }
  }

  const std::vector<Feature>& features() const override { return features_; }
  size_t size() const override { return ends_.back(); }
  Row read(size_t row) const override {
    const auto [table, inner] = find(row);
    Row result = tables_[table]->read(inner);
    if (!widens_[table]) return result;
    for (size_t i = 0; i < features_.size(); ++i) {
      if (!conform(result.value(i), features_[i]))
        throw Error(ErrorCode::kInternal, fmt::format("{}: column '{}' is not {}", place(row),
                                                      features_[i].name, to_string(features_[i])));
    }
    return result;
  }
  std::string place(size_t row) const override {
    const auto [table, inner] = find(row);
    return tables_[table]->place(inner);
  }
  TablePtr select(const TablePtr&, const std::vector<size_t>& columns) const override {
    std::vector<TablePtr> tables;
    tables.reserve(tables_.size());
    for (const TablePtr& table : tables_) tables.push_back(table->select(table, columns));
    std::vector<Feature> kept;
    kept.reserve(columns.size());
    for (const size_t column : columns) kept.push_back(features_[column]);
    return std::make_shared<Concatenated>(std::move(tables), std::move(kept));
  }

 private:
  std::pair<size_t, size_t> find(size_t row) const {
    const auto end = std::upper_bound(ends_.begin(), ends_.end(), row);
    const auto table = static_cast<size_t>(end - ends_.begin());
    return {table, row - (table == 0 ? 0 : ends_[table - 1])};
  }

  std::vector<TablePtr> tables_;
  std::vector<Feature> features_;
  std::vector<size_t> ends_;
  std::vector<bool> widens_;
};

class MappedView : public Table {
 public:
  MappedView(TablePtr table, std::function<Row(const Row&)> function,
             const std::vector<std::string>& removed)
      : table_(std::move(table)), function_(std::move(function)), names_(shared_names({})) {
    if (table_->size() == 0) return;
    Row first = table_->read(0);
    Row added = call(0, first);
    for (const std::string& column : removed) first.remove(column);
    for (size_t i = 0; i < added.size(); ++i)
      first.set(added.column_names()[i], std::move(added.value(i)));
    at_row("the function of map", *table_, 0, [&] { features_ = feature_of(Value(first)).of; });
    names_ = shared_names(features_);
    for (const std::string& name : *names_) {
      const bool read = std::find(removed.begin(), removed.end(), name) == removed.end();
      const auto names = names_of(table_->features());
      const auto found = std::find(names.begin(), names.end(), name);
      sources_.push_back(read && found != names.end() ? static_cast<size_t>(found - names.begin())
                                                      : kAdded);
    }
  }

  const std::vector<Feature>& features() const override { return features_; }
  size_t size() const override { return table_->size(); }
  std::string place(size_t row) const override { return table_->place(row); }
  Row read(size_t row) const override {
    Row source = table_->read(row);
    Row added = call(row, source);
    std::vector<Value> values(features_.size());
    size_t taken = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const auto& names = added.column_names();
      const auto found = std::find(names.begin(), names.end(), (*names_)[i]);
      if (found != names.end()) {
        values[i] = std::move(added.value(static_cast<size_t>(found - names.begin())));
        ++taken;
      } else if (sources_[i] != kAdded) {
        values[i] = std::move(source.value(sources_[i]));
      } else {
        refuse(row, fmt::format("lacks the column '{}', which the first row has", (*names_)[i]));
      }
      if (!conform(values[i], features_[i]))
        refuse(row, fmt::format("is not {}, as the first row, in column '{}'",
                                to_string(features_[i]), (*names_)[i]));
    }
    if (taken != added.size())
      refuse(row, fmt::format("has the columns {}, but only these are in the first row: {}",
                              fmt::join(added.column_names(), ", "), fmt::join(*names_, ", ")));
    return {names_, std::move(values)};
  }

 private:
  static constexpr size_t kAdded = ~size_t{0};

  Row call(size_t row, const Row& source) const {
    Row added;
    at_row("the function of map", *table_, row, [&] { added = function_(source); });
    return added;
  }

  [[noreturn]] void refuse(size_t row, const std::string& problem) const {
    fail_argument(fmt::format("what map returned for row {} ({}) {}", row, place(row), problem),
                  "map", "return the same columns, of the same types, for every row");
  }

  TablePtr table_;
  std::function<Row(const Row&)> function_;
  std::vector<Feature> features_;
  SharedNames names_;
  std::vector<size_t> sources_;  // of each column: its position in table_'s rows, or kAdded
};

}  // namespace

TablePtr Table::select(const TablePtr& self, const std::vector<size_t>& columns) const {
  return std::make_shared<ColumnsView>(self, columns);
}

TablePtr table_of(std::vector<Row> rows) { return std::make_shared<MemoryTable>(std::move(rows)); }

TablePtr select_rows(const TablePtr& table, std::vector<size_t> rows) {
  for (const size_t row : rows) {
    if (row >= table->size())
      fail_argument(
          fmt::format("the dataset has {} rows, but row {} is selected", table->size(), row),
          "indices", "rows count from 0");
  }
  return std::make_shared<RowsView>(table, std::move(rows));
}

TablePtr slice_rows(const TablePtr& table, size_t first, size_t count) {
  return std::make_shared<SliceView>(table, first, count);
}

TablePtr select_columns(const TablePtr& table, const std::vector<std::string>& columns) {
  std::vector<size_t> positions;
  std::set<std::string> seen;
  for (const std::string& column : columns) {
    if (!seen.insert(column).second)
      fail_argument(fmt::format("column '{}' is selected twice", for_message(column)), column);
    positions.push_back(position_of(*table, column));
  }
  return table->select(table, positions);
}

TablePtr remove_columns(const TablePtr& table, const std::vector<std::string>& columns) {
  std::set<size_t> removed;
  for (const std::string& column : columns) removed.insert(position_of(*table, column));
  std::vector<size_t> kept;
  for (size_t i = 0; i < table->features().size(); ++i) {
    if (!removed.contains(i)) kept.push_back(i);
  }
  return table->select(table, kept);
}

TablePtr rename_column(const TablePtr& table, const std::string& from, const std::string& to) {
  std::vector<Feature> features = table->features();
  const size_t position = position_of(*table, from);
  for (const Feature& feature : features) {
    if (feature.name == to && from != to)
      fail_argument(fmt::format("column '{}' cannot be renamed to '{}', which exists already",
                                for_message(from), for_message(to)),
                    to, "remove that one first");
  }
  features[position].name = to;
  return std::make_shared<RenamedView>(table, std::move(features));
}

TablePtr concatenate(const std::vector<TablePtr>& tables) {
  if (tables.empty()) fail_argument("there are no datasets to concatenate", "datasets");
  std::vector<Feature> features = tables.front()->features();
  std::vector<TablePtr> parts;
  for (const TablePtr& table : tables) {
    const auto names = names_of(features);
    const auto own = names_of(table->features());
    if (std::set(names.begin(), names.end()) != std::set(own.begin(), own.end()))
      fail_argument(fmt::format("datasets with other columns cannot be concatenated: [{}] and [{}]",
                                fmt::join(names, ", "), fmt::join(own, ", ")),
                    "columns", "select_columns or rename_column make them equal");
    parts.push_back(names == own ? table : select_columns(table, names));
    if (const Merged result = merge(features, table->features()); !result.merged)
      fail_argument(fmt::format("datasets with other types cannot be concatenated: column '{}' has "
                                "different ones",
                                for_message(result.column)),
                    result.column, "convert it with map");
  }
  return std::make_shared<Concatenated>(std::move(parts), std::move(features));
}

TablePtr map_rows(const TablePtr& table, std::function<Row(const Row&)> function,
                  const std::vector<std::string>& removed) {
  for (const std::string& column : removed) position_of(*table, column);
  return std::make_shared<MappedView>(table, std::move(function), removed);
}

std::vector<size_t> filter_rows(const Table& table,
                                const std::function<bool(const Row&)>& function) {
  std::vector<size_t> rows;
  for (size_t row = 0; row < table.size(); ++row) {
    const Row whole = table.read(row);
    at_row("the function of filter", table, row, [&] {
      if (function(whole)) rows.push_back(row);
    });
  }
  return rows;
}

void at_row(const char* what, const Table& table, size_t row,
            const std::function<void()>& function) {
  try {
    function();
  } catch (const std::exception& error) {
    const auto* const known = dynamic_cast<const Error*>(&error);
    std::throw_with_nested(Error(
        known != nullptr ? known->code() : ErrorCode::kInvalidArgument,
        fmt::format("{} failed at row {} ({}): {}", what, row, table.place(row), error.what()),
        {.subject = what, .hint = {}}));
  }
}

}  // namespace coupler::datasets
