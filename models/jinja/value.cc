#include "jinja/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "unicode.h"

namespace coupler::jinja {
namespace {

size_t depth_of(const Value& value) {
  if (const auto* const list = value.as<std::shared_ptr<const List>>()) return (*list)->depth;
  if (const auto* const dict = value.as_dict()) return (*dict)->depth;
  return 0;
}

size_t deeper(size_t depth) {
  if (depth >= Budget::kDepth) throw Problem("it nests values more than 100 deep");
  return depth + 1;
}

// Python's repr of a float: the shortest digits that read back the same.
std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto whole = [&](std::chars_format format) {
    return std::string(buffer, std::to_chars(buffer, buffer + sizeof buffer, value, format).ptr);
  };
  const double size = std::abs(value);
  if (size != 0 && (size < 1e-4 || size >= 1e16)) return whole(std::chars_format::scientific);
  const std::string text = whole(std::chars_format::fixed);
  return text.find('.') == std::string::npos ? text + ".0" : text;
}

std::string quoted(const std::string& text) {
  const bool doubled = text.find('\'') != std::string::npos && text.find('"') == std::string::npos;
  const char quote = doubled ? '"' : '\'';
  std::string result(1, quote);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == quote || c == '\\') {
      result += {'\\', c};
    } else if (c == '\n') {
      result += "\\n";
    } else if (c == '\r') {
      result += "\\r";
    } else if (c == '\t') {
      result += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      result += fmt::format("\\x{:02x}", byte);
    } else {
      result += c;
    }
  }
  return result + quote;
}

std::string json_text(const std::string& text, bool ascii) {
  std::string result = "\"";
  for (const unicode::Character& character : unicode::characters(text)) {
    const char32_t code = character.code;
    constexpr std::pair<char32_t, const char*> kNamed[] = {
        {U'"', "\\\""}, {U'\\', "\\\\"}, {U'\n', "\\n"}, {U'\r', "\\r"},
        {U'\t', "\\t"}, {U'\b', "\\b"},  {U'\f', "\\f"}};
    const auto* const named = std::find_if(std::begin(kNamed), std::end(kNamed),
                                           [&](const auto& known) { return known.first == code; });
    if (named != std::end(kNamed)) {
      result += named->second;
    } else if (code < 0x20 || (ascii && code > 0x7e && code < 0x10000)) {
      result += fmt::format("\\u{:04x}", static_cast<uint32_t>(code));
    } else if (ascii && code >= 0x10000) {
      const auto rest = static_cast<uint32_t>(code) - 0x10000;
      result += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
    } else {
      result += character.span.of(text);
    }
  }
  return result + "\"";
}

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, Budget& budget) : style_(style), budget_(budget) {}

  void write(const Value& value, size_t level) {
    budget_.spend();
    Budget::check_size(result_.size());
    if (value.is_none()) {
      result_ += "null";
    } else if (const bool* const flag = value.as<bool>()) {
      result_ += *flag ? "true" : "false";
    } else if (const double* const number = value.as<double>()) {
      result_ += std::isnan(*number)   ? "NaN"
                 : std::isinf(*number) ? (*number < 0 ? "-Infinity" : "Infinity")
                                       : float_text(*number);
    } else if (value.is_number()) {
      result_ += std::to_string(value.integer());
    } else if (const auto* const text = value.as<std::string>()) {
      result_ += json_text(*text, style_.ascii);
    } else if (const auto* const items = value.items()) {
      write_all(*items, level, '[', ']', [&](const Value& item) { write(item, level + 1); });
    } else if (value.as_dict() != nullptr && !(*value.as_dict())->is_namespace) {
      auto entries = (*value.as_dict())->items;
      if (style_.sort_keys)
        std::sort(entries.begin(), entries.end(),
                  [](const auto& a, const auto& b) { return a.first < b.first; });
      write_all(entries, level, '{', '}', [&](const auto& entry) {
        result_ += json_text(entry.first, style_.ascii) + style_.key_separator;
        write(entry.second, level + 1);
      });
    } else {
      throw Problem("tojson cannot write " + value.type());
    }
  }

  std::string take() { return std::move(result_); }

 private:
  template <class Items, class One>
  void write_all(const Items& items, size_t level, char open, char close, const One& one) {
    result_ += open;
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) result_ += style_.item_separator;
      line(level + 1);
      one(items[i]);
    }
    if (!items.empty()) line(level);
    result_ += close;
  }
  void line(size_t level) {
    if (!style_.newlines) return;
    result_ += '\n';
    for (size_t i = 0; i < level; ++i) result_ += style_.indent;
  }

  const JsonStyle& style_;
  Budget& budget_;
  std::string result_;
};

}  // namespace

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : items) {
    if (name == key) return &value;
  }
  return nullptr;
}

Value Value::list(std::vector<Value> items, bool is_tuple) {
  auto result = std::make_shared<List>();
  result->is_tuple = is_tuple;
  for (const Value& item : items) result->depth = std::max(result->depth, deeper(depth_of(item)));
  result->items = std::move(items);
  return std::shared_ptr<const List>(std::move(result));
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): the elements are moved
Value Value::dict(std::vector<std::pair<std::string, Value>> items) {
  auto result = std::make_shared<Dict>();
  for (auto& [key, value] : items) {
    result->depth = std::max(result->depth, deeper(depth_of(value)));
    const auto same =
        std::find_if(result->items.begin(), result->items.end(),
                     [&, name = &key](const auto& entry) { return entry.first == *name; });
    if (same != result->items.end()) {
      same->second = std::move(value);
    } else {
      result->items.emplace_back(std::move(key), std::move(value));
    }
  }
  return result;
}

Value Value::of_json(const nlohmann::ordered_json& json) {
  using Kind = nlohmann::ordered_json::value_t;
  switch (json.type()) {
    case Kind::boolean:
      return json.get<bool>();
    case Kind::number_integer:
    case Kind::number_unsigned:
      return json.get<int64_t>();
    case Kind::number_float:
      return json.get<double>();
    case Kind::string:
      return json.get<std::string>();
    case Kind::array: {
      std::vector<Value> items;
      for (const auto& item : json) items.push_back(of_json(item));
      return list(std::move(items));
    }
    case Kind::object: {
      std::vector<std::pair<std::string, Value>> items;
      for (const auto& [key, item] : json.items()) items.emplace_back(key, of_json(item));
      return dict(std::move(items));
    }
    default:
      return nullptr;
  }
}

const std::vector<Value>* Value::items() const {
  const auto* const list = as<std::shared_ptr<const List>>();
  return list == nullptr ? nullptr : &(*list)->items;
}

bool Value::is_tuple() const {
  const auto* const list = as<std::shared_ptr<const List>>();
  return list != nullptr && (*list)->is_tuple;
}

int64_t Value::integer() const {
  if (const bool* const flag = as<bool>()) return *flag ? 1 : 0;
  if (const int64_t* const number = as<int64_t>()) return *number;
  throw Problem("an integer is needed, not " + type());
}

double Value::number() const {
  if (const double* const number = as<double>()) return *number;
  if (!is_number()) throw Problem("a number is needed, not " + type());
  return static_cast<double>(integer());
}

const std::string& Value::text(std::string_view wanted_by) const& {
  if (const auto* const text = as<std::string>()) return *text;
  throw Problem(fmt::format("{} needs a string, not {}", wanted_by, type()));
}

std::string Value::text(std::string_view wanted_by) && {
  return std::as_const(*this).text(wanted_by);
}

bool Value::truth() const {
  if (is_undefined() || is_none()) return false;
  if (is_number()) return number() != 0;
  if (const auto* const text = as<std::string>()) return !text->empty();
  if (const auto* const list = items()) return !list->empty();
  if (as_dict() != nullptr) return (*as_dict())->is_namespace || !(*as_dict())->items.empty();
  return true;
}

std::string Value::type() const {
  constexpr const char* kNames[] = {"undefined", "none",   "a bool", "an integer", "a float",
                                    "a string",  "a list", "a dict", "a function"};
  if (const auto* const undefined = as<Undefined>())
    return fmt::format("'{}', which is undefined", undefined->name);
  if (as_dict() != nullptr && (*as_dict())->is_namespace) return "a namespace";
  return kNames[storage_.index()];
}

std::string Value::str(Budget& budget) const {
  if (is_undefined()) return "";
  if (const auto* const text = as<std::string>()) return *text;
  return repr(budget);
}

std::string Value::repr(Budget& budget) const {
  budget.spend();
  if (is_undefined()) return "Undefined";
  if (is_none()) return "None";
  if (const bool* const flag = as<bool>()) return *flag ? "True" : "False";
  if (const double* const number = as<double>()) return float_text(*number);
  if (is_number()) return std::to_string(integer());
  if (const auto* const text = as<std::string>()) return quoted(*text);
  const auto joined = [&](const auto& all, const auto& one) {
    std::string result;
    for (const auto& item : all) {
      result += (result.empty() ? "" : ", ") + one(item);
      Budget::check_size(result.size());
    }
    return result;
  };
  if (const auto* const list = items()) {
    const auto inner = joined(*list, [&](const Value& item) { return item.repr(budget); });
    if (is_tuple()) return "(" + inner + (list->size() == 1 ? ",)" : ")");
    return "[" + inner + "]";
  }
  if (as_dict() != nullptr && !(*as_dict())->is_namespace)
    return "{" +
           joined((*as_dict())->items,
                  [&](const auto& entry) {
                    return quoted(entry.first) + ": " + entry.second.repr(budget);
                  }) +
           "}";
  throw Problem("it prints " + type());
}

bool equal(const Value& a, const Value& b, Budget& budget) {
  budget.spend();
  if (a.as<int64_t>() && b.as<int64_t>()) return a.integer() == b.integer();
  if (a.is_number() && b.is_number()) return a.number() == b.number();
  if (a.is_undefined() || b.is_undefined()) return a.is_undefined() && b.is_undefined();
  if (a.is_none() || b.is_none()) return a.is_none() && b.is_none();
  const auto *const left = a.as<std::string>(), *const right = b.as<std::string>();
  if (left && right) return *left == *right;
  if (a.items() && b.items())
    return a.is_tuple() == b.is_tuple() &&
           std::equal(a.items()->begin(), a.items()->end(), b.items()->begin(), b.items()->end(),
                      [&](const Value& x, const Value& y) { return equal(x, y, budget); });
  if (a.as_dict() && b.as_dict()) {
    const Dict &x = **a.as_dict(), &y = **b.as_dict();
    if (x.is_namespace || y.is_namespace) return &x == &y;
    return x.items.size() == y.items.size() &&
           std::all_of(x.items.begin(), x.items.end(), [&](const auto& entry) {
             const Value* const other = y.find(entry.first);
             return other != nullptr && equal(entry.second, *other, budget);
           });
  }
  const auto *const f = a.as<std::shared_ptr<Function>>(), *const g =
                                                               b.as<std::shared_ptr<Function>>();
  return f && g && *f == *g;
}

bool less(const Value& a, const Value& b, Budget& budget) {
  budget.spend();
  if (a.as<int64_t>() && b.as<int64_t>()) return a.integer() < b.integer();
  if (a.is_number() && b.is_number()) return a.number() < b.number();
  const auto *const left = a.as<std::string>(), *const right = b.as<std::string>();
  if (left && right) return *left < *right;  // UTF-8 has the order of its characters
  if (a.items() && b.items()) {
    const auto &x = *a.items(), &y = *b.items();
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!equal(x[i], y[i], budget)) return less(x[i], y[i], budget);
    }
    return x.size() < y.size();
  }
  throw Problem(fmt::format("it compares {} with {}", a.type(), b.type()));
}

std::vector<Value> iterated(const Value& value, Budget& budget) {
  std::vector<Value> result;
  if (const auto* const list = value.items()) {
    result = *list;
  } else if (const auto* const text = value.as<std::string>()) {
    for (const unicode::Character& character : unicode::characters(*text))
      result.emplace_back(character.span.of(*text));
  } else if (value.as_dict() != nullptr && !(*value.as_dict())->is_namespace) {
    for (const auto& [key, item] : (*value.as_dict())->items) result.emplace_back(key);
  } else if (!value.is_undefined()) {
    throw Problem("it loops over " + value.type());
  }
  budget.spend(result.size());
  return result;
}

std::string to_json(const Value& value, const JsonStyle& style, Budget& budget) {
  JsonWriter writer(style, budget);
  writer.write(value, 0);
  return writer.take();
}

}  // namespace coupler::jinja
