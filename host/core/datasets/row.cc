#include <coupler/row.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "datasets/features.h"

namespace coupler {
namespace {

const std::vector<std::string>& no_names() {
  static const std::vector<std::string> kNone;
  return kNone;
}

[[noreturn]] void refuse_column(std::string_view column, const std::vector<std::string>& names) {
  fail_argument(
      fmt::format("there is no column '{}'{}", for_message(column), did_you_mean(column, names)),
      column, fmt::format("the columns are: {}", fmt::join(names, ", ")));
}

}  // namespace

std::string to_string(const Feature& feature) {
  switch (feature.type) {
    case FeatureType::kNull:
      return "null";
    case FeatureType::kBool:
      return "bool";
    case FeatureType::kInt64:
      return "int64";
    case FeatureType::kFloat64:
      return "float64";
    case FeatureType::kString:
      return "string";
    case FeatureType::kList:
      return fmt::format("list<{}>", feature.of.empty() ? "null" : to_string(feature.of[0]));
    case FeatureType::kStruct:
      break;
  }
  std::string fields;
  for (const Feature& field : feature.of) {
    fields += fmt::format("{}{}: {}", fields.empty() ? "" : ", ", field.name, to_string(field));
  }
  return fmt::format("struct<{}>", fields);
}

Row::Row(std::initializer_list<std::pair<std::string, Value>> columns) {
  std::vector<std::string> names;
  for (const auto& [name, value] : columns) {
    if (std::find(names.begin(), names.end(), name) != names.end())
      fail_argument(fmt::format("column '{}' is given twice", for_message(name)), name);
    names.push_back(name);
    values_.push_back(value);
  }
  names_ = std::make_shared<const std::vector<std::string>>(std::move(names));
}

Row::Row(std::shared_ptr<const std::vector<std::string>> names, std::vector<Value> values)
    : names_(std::move(names)), values_(std::move(values)) {
  if (values_.size() != column_names().size())
    fail_argument(
        fmt::format("{} values were given for {} columns", values_.size(), column_names().size()),
        "values");
}

size_t Row::size() const { return values_.size(); }

const std::vector<std::string>& Row::column_names() const { return names_ ? *names_ : no_names(); }

size_t Row::find(std::string_view column) const {
  const auto& names = column_names();
  return static_cast<size_t>(std::find(names.begin(), names.end(), column) - names.begin());
}

bool Row::contains(std::string_view column) const { return find(column) < size(); }

const Value& Row::operator[](std::string_view column) const {
  const size_t position = find(column);
  if (position == size()) refuse_column(column, column_names());
  return values_[position];
}

const Value& Row::value(size_t position) const { return values_.at(position); }
Value& Row::value(size_t position) { return values_.at(position); }

void Row::set(std::string_view column, Value value) {
  const size_t position = find(column);
  if (position < size()) {
    values_[position] = std::move(value);
    return;
  }
  std::vector<std::string> names = column_names();
  names.emplace_back(column);
  names_ = std::make_shared<const std::vector<std::string>>(std::move(names));
  values_.push_back(std::move(value));
}

void Row::remove(std::string_view column) {
  const size_t position = find(column);
  if (position == size()) refuse_column(column, column_names());
  std::vector<std::string> names = column_names();
  names.erase(names.begin() + static_cast<std::ptrdiff_t>(position));
  names_ = std::make_shared<const std::vector<std::string>>(std::move(names));
  values_.erase(values_.begin() + static_cast<std::ptrdiff_t>(position));
}

bool Row::operator==(const Row& other) const {
  return column_names() == other.column_names() && values_ == other.values_;
}

namespace {

bool all_are(const Value::List& list, FeatureType type) {
  return std::all_of(list.begin(), list.end(),
                     [&](const Value& value) { return value.type() == type; });
}

}  // namespace

// An empty list is always a List, so that it has one form.
Value::Value(std::vector<int64_t> list) {
  if (list.empty()) {
    held_ = List();
  } else {
    held_ = std::move(list);
  }
}

Value::Value(std::vector<double> list) {
  if (list.empty()) {
    held_ = List();
  } else {
    held_ = std::move(list);
  }
}

Value::Value(const std::vector<std::string>& list) : held_(List(list.begin(), list.end())) {}

Value::Value(List list) {
  const auto unpack = [&](auto example) {
    std::vector<decltype(example)> numbers;
    numbers.reserve(list.size());
    for (const Value& value : list) numbers.push_back(std::get<decltype(example)>(value.held_));
    held_ = std::move(numbers);
  };
  if (!list.empty() && all_are(list, FeatureType::kInt64)) {
    unpack(int64_t{});
  } else if (!list.empty() && all_are(list, FeatureType::kFloat64)) {
    unpack(double{});
  } else {
    held_ = std::move(list);
  }
}

FeatureType Value::type() const {
  using enum FeatureType;
  // By the order of Held's alternatives.
  constexpr FeatureType kTypes[] = {kNull, kBool, kInt64, kFloat64, kString,
                                    kList, kList, kList,  kStruct};
  return kTypes[held_.index()];
}

size_t Value::size() const {
  return std::visit(
      [](const auto& held) -> size_t {
        using T = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<T, std::monostate> || std::is_arithmetic_v<T>) {
          return 0;
        } else {
          return held.size();
        }
      },
      held_);
}

void Value::refuse(const char* wanted, std::string_view column) const {
  const std::string subject =
      column.empty() ? "a value" : fmt::format("column '{}'", for_message(column));
  const std::string text = to_string(*this);
  fail_argument(
      is_null() ? fmt::format("{} is null, and {} was asked for", subject, wanted)
                : fmt::format("{} is {}, not {}: {}", subject,
                              to_string(datasets::feature_of(*this)), wanted, for_message(text)),
      column.empty() ? "value" : column,
      is_null() ? "drop such rows with filter, or ask is_null() first"
                : "features() lists the types of a dataset's columns");
}

int64_t Value::integer(int64_t least, int64_t most, std::string_view column) const {
  const int64_t found = held<int64_t>("an integer", column);
  if (found < least || found > most) refuse("an integer of the wanted size", column);
  return found;
}

double Value::number(std::string_view column) const {
  if (const auto* const whole = std::get_if<int64_t>(&held_)) return static_cast<double>(*whole);
  return held<double>("a number", column);
}

const std::vector<int64_t>& Value::integers(std::string_view column) const {
  static const std::vector<int64_t> kNone;
  if (type() == FeatureType::kList && size() == 0) return kNone;
  return held<std::vector<int64_t>>("a list of integers", column);
}

Value::List Value::list(std::string_view column) const {
  if (const auto* const whole = std::get_if<std::vector<int64_t>>(&held_))
    return {whole->begin(), whole->end()};
  if (const auto* const real = std::get_if<std::vector<double>>(&held_))
    return {real->begin(), real->end()};
  return held<List>("a list", column);
}

namespace {

nlohmann::ordered_json json_of(const Row& row);

nlohmann::ordered_json json_of(const Value& value) {
  switch (value.type()) {
    case FeatureType::kNull:
      return nullptr;
    case FeatureType::kBool:
      return value.get<bool>();
    case FeatureType::kInt64:
      return value.get<int64_t>();
    case FeatureType::kFloat64:
      return value.get<double>();
    case FeatureType::kString:
      return value.get<std::string>();
    case FeatureType::kList: {
      auto list = nlohmann::ordered_json::array();
      for (const Value& element : value.get<Value::List>()) list.push_back(json_of(element));
      return list;
    }
    case FeatureType::kStruct:
      break;
  }
  return json_of(value.get<Row>());
}

nlohmann::ordered_json json_of(const Row& row) {
  auto object = nlohmann::ordered_json::object();
  for (size_t i = 0; i < row.size(); ++i) object[row.column_names()[i]] = json_of(row.value(i));
  return object;
}

std::string dump(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

std::string to_string(const Value& value) { return dump(json_of(value)); }
std::string to_string(const Row& row) { return dump(json_of(row)); }

}  // namespace coupler
