// Row, Value and Feature: a row of a dataset (<coupler/dataset.h>), its values and the types of its
// columns. Needs no LibTorch. Values own what they hold; as thread-safe as std::string.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace coupler {

// The type of a column or value. Files' narrower types are widened: integers to 64 bits, floating
// point numbers to double. Dates and times are strings.
enum class FeatureType {
  kNull,     // no value yet: fits any type
  kBool,     // true or false
  kInt64,    // a signed integer
  kFloat64,  // a double
  kString,   // UTF-8, or the bytes of a binary column
  kList,     // of values of one type
  kStruct,   // named fields: a Row
};

// A column's name and type; any type may have null values. For example, chat messages are
//   {"messages", FeatureType::kList, {{"", FeatureType::kStruct,
//       {{"role", FeatureType::kString}, {"content", FeatureType::kString}}}}}
struct Feature {
  std::string name;                       // of the column or field
  FeatureType type = FeatureType::kNull;  // of its values
  std::vector<Feature> of;  // of a list: its element, whose name is ""; of a struct: its fields

  // The same name and type.
  bool operator==(const Feature& other) const = default;
};

// The name of a type as Hugging Face datasets has it: "int64", "list<string>", "struct<a: bool>".
std::string to_string(const Feature& feature);

class Value;

// Named values, in order. Copies of a row share their names.
class Row {
 public:
  Row() = default;
  // Throws Error(kInvalidArgument) if a name occurs twice.
  Row(std::initializer_list<std::pair<std::string, Value>> columns);
  // values: one for each name. Names must differ.
  Row(std::shared_ptr<const std::vector<std::string>> names, std::vector<Value> values);

  // The number of columns.
  size_t size() const;
  const std::vector<std::string>& column_names() const;
  bool contains(std::string_view column) const;

  // Throws Error(kInvalidArgument) naming the columns that there are.
  const Value& operator[](std::string_view column) const;
  // The value at a position below size().
  const Value& value(size_t position) const;
  Value& value(size_t position);

  // The column's value as a T, converted as by Value::get; the Error names the column.
  template <class T>
  decltype(auto) get(std::string_view column) const;

  // Replaces the column's value, or appends a column.
  void set(std::string_view column, Value value);
  // Throws Error(kInvalidArgument) if there is no such column.
  void remove(std::string_view column);

  // The same columns, in the same order, with equal values.
  bool operator==(const Row& other) const;

 private:
  size_t find(std::string_view column) const;  // size() if there is none

  std::shared_ptr<const std::vector<std::string>> names_;  // null: none
  std::vector<Value> values_;
};

// A value of a row: null, bool, int64, double, string, list or Row. A list whose elements are all
// integers, or all doubles, is kept as a vector of these.
class Value {
 public:
  // A list of any values.
  using List = std::vector<Value>;

  Value() = default;  // null
  // Null, text, lists, and a struct.
  Value(std::nullptr_t) {}
  Value(std::string text) : held_(std::move(text)) {}
  Value(std::string_view text) : held_(std::string(text)) {}
  Value(const char* text) : held_(std::string(text)) {}
  Value(std::vector<int64_t> list);
  Value(std::vector<double> list);
  Value(const std::vector<std::string>& list);
  Value(List list);
  Value(Row row) : held_(std::move(row)) {}
  // bool, and any number. An unsigned number above 2^63 - 1 becomes a double.
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  Value(T number) {
    if constexpr (std::is_same_v<T, bool>) {
      held_ = number;
    } else if (std::is_integral_v<T> &&
               (std::is_signed_v<T> || static_cast<uint64_t>(number) <= uint64_t{INT64_MAX})) {
      held_ = static_cast<int64_t>(number);
    } else {
      held_ = static_cast<double>(number);
    }
  }

  // Whether it is null, and its type.
  bool is_null() const { return std::holds_alternative<std::monostate>(held_); }
  FeatureType type() const;
  // The number of elements of a list, bytes of a string or columns of a Row; 0 for others.
  size_t size() const;

  // The value as a T, which is bool, an integer or floating point type, std::string, Row, or a
  // std::vector of these or of Value. Integers convert to floating point. Returns a reference for
  // std::string, Row and std::vector<int64_t>. column: for the message. Throws
  // Error(kInvalidArgument) if the value has another type or is null, and if an integer does not
  // fit.
  template <class T>
  decltype(auto) get(std::string_view column = {}) const;

  // Moves the value out, which must be a T: std::string, Row, List or std::vector<int64_t>, in
  // which it is kept. Throws like get.
  template <class T>
  T take(std::string_view column = {}) {
    static_cast<void>(held<T>("a value of the type to be taken", column));
    return std::move(*std::get_if<T>(&held_));
  }

  // Calls function with what is kept, a std::monostate, bool, int64_t, double, std::string,
  // std::vector<int64_t>, std::vector<double>, List or Row, and returns what it returns.
  template <class Function>
  decltype(auto) visit(Function&& function) const {
    return std::visit(std::forward<Function>(function), held_);
  }

  // Equal type and contents; an empty list equals any other.
  bool operator==(const Value& other) const { return held_ == other.held_; }

 private:
  using Held = std::variant<std::monostate, bool, int64_t, double, std::string,
                            std::vector<int64_t>, std::vector<double>, List, Row>;

  template <class T>
  struct IsVector : std::false_type {};
  template <class T>
  struct IsVector<std::vector<T>> : std::true_type {};

  [[noreturn]] void refuse(const char* wanted, std::string_view column) const;
  int64_t integer(int64_t least, int64_t most, std::string_view column) const;
  double number(std::string_view column) const;
  const std::vector<int64_t>& integers(std::string_view column) const;
  List list(std::string_view column) const;
  template <class T>
  const T& held(const char* wanted, std::string_view column) const {
    if (const T* const found = std::get_if<T>(&held_)) return *found;
    refuse(wanted, column);
  }

  Held held_;
};

// The value as JSON text, for people: bytes that are not UTF-8 are replaced.
std::string to_string(const Value& value);
std::string to_string(const Row& row);

template <class T>
decltype(auto) Value::get(std::string_view column) const {
  if constexpr (std::is_same_v<T, bool>) {
    return bool{held<bool>("bool", column)};
  } else if constexpr (std::is_integral_v<T>) {
    constexpr int64_t kMost = sizeof(T) < sizeof(int64_t)
                                  ? static_cast<int64_t>(std::numeric_limits<T>::max())
                                  : std::numeric_limits<int64_t>::max();
    return static_cast<T>(
        integer(static_cast<int64_t>(std::numeric_limits<T>::min()), kMost, column));
  } else if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(number(column));
  } else if constexpr (std::is_same_v<T, std::string>) {
    return held<std::string>("string", column);
  } else if constexpr (std::is_same_v<T, Row>) {
    return held<Row>("struct", column);
  } else if constexpr (std::is_same_v<T, std::vector<int64_t>>) {
    return integers(column);
  } else {
    static_assert(IsVector<T>::value, "a Value holds no such type: see Value::get");
    if constexpr (std::is_same_v<T, List>) {
      return list(column);
    } else {
      T result;
      for (const Value& element : list(column)) {
        result.push_back(element.get<typename T::value_type>(column));
      }
      return result;
    }
  }
}

template <class T>
decltype(auto) Row::get(std::string_view column) const {
  return (*this)[column].template get<T>(column);
}

}  // namespace coupler
