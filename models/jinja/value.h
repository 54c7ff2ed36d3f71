// The values of a chat template's variables and expressions: those of Python that Jinja templates
// see. Copies share lists and dictionaries, which never change, except for namespaces. Used by one
// thread. Does not depend on LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace coupler::jinja {

// What is wrong with a template or with what it computes. The template adds the file and the line.
struct Problem : std::runtime_error {
  explicit Problem(const std::string& message, bool unsupported_of = false)
      : runtime_error(message), unsupported(unsupported_of) {}
  bool unsupported;  // correct Jinja, but not part of the subset
};

// What a template may use up: templates are other people's programs.
struct Budget {
  static constexpr size_t kSteps = 2'000'000;   // values visited, iterations
  static constexpr size_t kBytes = 64UL << 20;  // of one text
  static constexpr size_t kDepth = 100;         // of values within values
  size_t steps = kSteps;

  void spend(size_t count = 1) {
    if (count > steps) throw Problem("it takes too many steps; its loops do not seem to end");
    steps -= count;
  }
  static void check_size(size_t bytes) {
    if (bytes > kBytes) throw Problem("it makes a text of more than 64 MiB");
  }
};

class Value;
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

struct Undefined {
  std::string name;  // for messages
};
struct List {
  std::vector<Value> items;
  size_t depth = 1;
  bool is_tuple = false;  // which only printing and comparing tell apart
};
// In the order of insertion.
struct Dict {
  std::vector<std::pair<std::string, Value>> items;
  size_t depth = 1;
  bool is_namespace = false;  // the only values that change

  const Value* find(std::string_view key) const;
};
struct Function {
  std::string name;
  std::function<Value(const Arguments& arguments)> call;
};

class Value {
 public:
  using Storage =
      std::variant<Undefined, std::nullptr_t, bool, int64_t, double, std::string,
                   std::shared_ptr<const List>, std::shared_ptr<Dict>, std::shared_ptr<Function>>;

  Value() : storage_(Undefined{}) {}
  template <class T>
  requires(!std::is_same_v<std::remove_cvref_t<T>, Value> && std::is_constructible_v<Storage, T&&>)
      Value(T&& value)
      : storage_(std::forward<T>(value)) {}
  Value(const char* text) : storage_(std::string(text)) {}
  // Throws Problem if values are nested too deeply.
  static Value list(std::vector<Value> items, bool is_tuple = false);
  static Value dict(std::vector<std::pair<std::string, Value>> items);
  static Value of_json(const nlohmann::ordered_json& json);

  template <class T>
  const T* as() const {
    return std::get_if<T>(&storage_);
  }
  const std::vector<Value>* items() const;  // of a list; otherwise null
  bool is_tuple() const;
  const std::shared_ptr<Dict>* as_dict() const { return as<std::shared_ptr<Dict>>(); }
  bool is_undefined() const { return as<Undefined>() != nullptr; }
  bool is_none() const { return as<std::nullptr_t>() != nullptr; }
  bool is_number() const { return as<bool>() || as<int64_t>() || as<double>(); }
  // Of an integer or bool; of any number. Throw Problem for other values.
  int64_t integer() const;
  double number() const;
  // Throws Problem naming what wanted it.
  const std::string& text(std::string_view wanted_by) const&;
  std::string text(std::string_view wanted_by) &&;

  bool truth() const;
  // "string", "list", …
  std::string type() const;
  // As Python's str and repr.
  std::string str(Budget& budget) const;
  std::string repr(Budget& budget) const;

 private:
  Storage storage_;
};

bool equal(const Value& a, const Value& b, Budget& budget);
// Throws Problem for values without an order.
bool less(const Value& a, const Value& b, Budget& budget);
// What a loop visits: elements, keys or characters. Throws Problem for other values.
std::vector<Value> iterated(const Value& value, Budget& budget);

struct JsonStyle {
  std::string indent;  // of one level; "" with newlines set: lines without indentation
  bool newlines = false, sort_keys = false, ascii = false;
  std::string item_separator = ", ", key_separator = ": ";
};
// As Python's json.dumps.
std::string to_json(const Value& value, const JsonStyle& style, Budget& budget);

}  // namespace coupler::jinja
