// Jinja's filters and tests.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>

#include "jinja/arguments.h"
#include "jinja/functions.h"
#include "unicode.h"

namespace coupler::jinja {
namespace {

using Filter = Value (*)(const Value& input, const Call& call);
using Test = bool (*)(const Value& input, const Call& call);

// A text that compares as Jinja compares by default: without case.
Value folded(const Value& value, bool case_sensitive) {
  const auto* const text = value.as<std::string>();
  return text == nullptr || case_sensitive ? value : Value(unicode::lower(*text));
}

// The attribute "function.name" or "0" of a value.
Value attribute_at(const Value& value, const Value& path, Budget& budget) {
  if (path.as<std::string>() == nullptr) return element_of(value, path, budget);
  Value result = value;
  const std::string& names = *path.as<std::string>();
  for (size_t begin = 0; begin <= names.size();) {
    const size_t end = std::min(names.find('.', begin), names.size());
    const std::string name = names.substr(begin, end - begin);
    int64_t index = 0;
    const bool number =
        !name.empty() && std::from_chars(name.data(), name.data() + name.size(), index).ptr ==
                             name.data() + name.size();
    result = element_of(result, number ? Value(index) : Value(name), budget);
    begin = end + 1;
  }
  return result;
}

// Sorts in place, by keys computed once.
void sort_by(std::vector<Value>& items, bool reverse, Budget& budget,
             const std::function<Value(const Value&)>& key_of) {
  std::vector<std::pair<Value, Value>> keyed;
  keyed.reserve(items.size());
  for (Value& item : items) keyed.emplace_back(key_of(item), std::move(item));
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? less(b.first, a.first, budget) : less(a.first, b.first, budget);
  });
  for (size_t i = 0; i < items.size(); ++i) items[i] = std::move(keyed[i].second);
}

int64_t length_of(const Value& value) {
  size_t length = 0;
  if (value.as_dict() != nullptr) {
    length = (*value.as_dict())->items.size();
  } else if (value.items() != nullptr) {
    length = value.items()->size();
  } else if (const auto* const text = value.as<std::string>()) {
    length = unicode::characters(*text).size();
  } else if (!value.is_undefined()) {
    throw Problem("it takes the length of " + value.type());
  }
  return static_cast<int64_t>(length);
}

Value as_json(const Value& input, const Call& call) {
  JsonStyle style;
  const Value indent = call.get(1, "indent", nullptr);
  if (!indent.is_none()) {
    style.newlines = true;
    style.item_separator = ",";
    style.indent =
        indent.as<std::string>() != nullptr
            ? *indent.as<std::string>()
            : std::string(static_cast<size_t>(std::clamp<int64_t>(indent.integer(), 0, 100)), ' ');
  }
  style.ascii = call.get(0, "ensure_ascii", false).truth();
  style.sort_keys = call.get(3, "sort_keys", false).truth();
  if (const Value separators = call.get(2, "separators", nullptr); !separators.is_none()) {
    const auto both = iterated(separators, call.budget);
    if (both.size() != 2) throw Problem("tojson needs two separators");
    style.item_separator = both[0].text("tojson");
    style.key_separator = both[1].text("tojson");
  }
  return to_json(input, style, call.budget);
}

Value indented(const Value& input, const Call& call) {
  const Value width = call.get(0, "width", int64_t{4});
  const std::string before =
      width.as<std::string>() != nullptr
          ? *width.as<std::string>()
          : std::string(static_cast<size_t>(std::clamp<int64_t>(width.integer(), 0, 1000)), ' ');
  const bool first = call.get(1, "first", false).truth();
  const bool blank = call.get(2, "blank", false).truth();
  const std::string& text = input.text("indent");
  std::string result;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (begin > 0 ? end > begin || blank : first) result += before;
    result.append(text, begin, end - begin);
    if (end < text.size()) result += '\n';
    Budget::check_size(result.size());
    begin = end + 1;
  }
  return result;
}

Value as_int(const Value& input, const Call& call) {
  if (const double* const number = input.as<double>()) {
    if (std::abs(*number) < 9e18) return static_cast<int64_t>(*number);
    return call.get(0, "default", int64_t{0});
  }
  if (input.is_number()) return input.integer();
  if (const auto* const given = input.as<std::string>()) {
    const std::string text = stripped(*given, nullptr, true, true);
    const size_t sign = text.starts_with('+') ? 1 : 0;
    int64_t whole = 0;
    const char* const end = text.data() + text.size();
    if (!text.empty() && std::from_chars(text.data() + sign, end, whole).ptr == end) return whole;
    double real = 0;
    if (!text.empty() && std::from_chars(text.data() + sign, end, real).ptr == end &&
        std::abs(real) < 9e18)
      return static_cast<int64_t>(real);
  }
  return call.get(0, "default", int64_t{0});
}

Value as_float(const Value& input, const Call& call) {
  if (input.is_number()) return input.number();
  if (const auto* const given = input.as<std::string>()) {
    const std::string text = stripped(*given, nullptr, true, true);
    double real = 0;
    const char* const end = text.data() + text.size();
    if (!text.empty() && std::from_chars(text.data(), end, real).ptr == end) return real;
  }
  return call.get(0, "default", 0.0);
}

// The arguments from one on.
Arguments after(const Arguments& all, size_t count) {
  Arguments rest;
  for (size_t i = count; i < all.positional.size(); ++i)
    rest.positional.push_back(all.positional[i]);
  rest.named = all.named;
  return rest;
}

Value mapped(const Value& input, const Call& call) {
  std::vector<Value> result;
  const Value attribute = call.get(99, "attribute", Value());
  for (const Value& item : iterated(input, call.budget)) {
    if (!attribute.is_undefined()) {
      const Value found = attribute_at(item, attribute, call.budget);
      result.push_back(found.is_undefined() ? call.get(99, "default", found) : found);
    } else {
      const Value name = call.get(0, "filter");
      if (!is_filter(name.text("map")))
        throw Problem("'" + *name.as<std::string>() + "' is not a supported filter", true);
      result.push_back(
          filtered(*name.as<std::string>(), item, after(call.arguments, 1), call.budget));
    }
  }
  return Value::list(std::move(result));
}

// select, reject, selectattr and rejectattr.
Value selected(const Value& input, const Call& call, bool by_attribute, bool wanted) {
  const size_t at = by_attribute ? 1 : 0;
  const Value test = call.get(at, "", Value());
  if (!test.is_undefined() && !is_test(test.text(call.name)))
    throw Problem("'" + *test.as<std::string>() + "' is not a supported test", true);
  const Arguments rest = after(call.arguments, at + 1);
  std::vector<Value> result;
  for (const Value& item : iterated(input, call.budget)) {
    const Value value =
        by_attribute ? attribute_at(item, call.get(0, "attribute"), call.budget) : item;
    const bool holds = test.is_undefined()
                           ? value.truth()
                           : tested(*test.as<std::string>(), value, rest, call.budget);
    if (holds == wanted) result.push_back(item);
  }
  return Value::list(std::move(result));
}

Value extreme(const Value& input, const Call& call, bool largest) {
  std::vector<Value> items = iterated(input, call.budget);
  if (items.empty()) return Undefined{call.name + " of nothing"};
  const bool cased = call.get(0, "case_sensitive", false).truth();
  const Value attribute = call.get(1, "attribute", nullptr);
  sort_by(items, largest, call.budget, [&](const Value& item) {
    return folded(attribute.is_none() ? item : attribute_at(item, attribute, call.budget), cased);
  });
  return items.front();
}

Value summed(const Value& input, const Call& call) {
  const Value attribute = call.get(0, "attribute", nullptr);
  Value sum = call.get(1, "start", int64_t{0});
  for (const Value& item : iterated(input, call.budget)) {
    const Value one = attribute.is_none() ? item : attribute_at(item, attribute, call.budget);
    int64_t whole = 0;
    if (sum.as<double>() || one.as<double>()) {
      sum = sum.number() + one.number();
    } else if (!__builtin_add_overflow(sum.integer(), one.integer(), &whole)) {
      sum = whole;
    } else {
      throw Problem("a sum is too large");
    }
  }
  return sum;
}

Value rounded(const Value& input, const Call& call) {
  const double factor =
      std::pow(10, static_cast<double>(call.get(0, "precision", int64_t{0}).integer()));
  const std::string method = call.get(1, "method", "common").text("round");
  if (method != "common" && method != "ceil" && method != "floor")
    throw Problem("round has the methods common, ceil and floor, not '" + method + "'");
  const double scaled = input.number() * factor;
  // As Python, to the even neighbor.
  return (method == "ceil"    ? std::ceil(scaled)
          : method == "floor" ? std::floor(scaled)
                              : std::nearbyint(scaled)) /
         factor;
}

const std::map<std::string, Filter>& filters() {
  static const Filter kLength = [](const Value& v, const Call&) -> Value { return length_of(v); };
  static const Filter kDefault = [](const Value& v, const Call& c) {
    const bool missing = v.is_undefined() || (c.get(1, "boolean", false).truth() && !v.truth());
    return missing ? c.get(0, "default_value", "") : v;
  };
  static const std::map<std::string, Filter> kFilters = {
      {"abs",
       [](const Value& v, const Call&) -> Value {
         if (v.as<double>()) return std::abs(v.number());
         const int64_t whole = v.integer();
         if (whole == std::numeric_limits<int64_t>::min()) throw Problem("a number is too large");
         return whole < 0 ? -whole : whole;
       }},
      {"capitalize",
       [](const Value& v, const Call& c) -> Value { return capitalized(v.str(c.budget)); }},
      {"count", kLength},
      {"d", kDefault},
      {"default", kDefault},
      {"dictsort",
       [](const Value& v, const Call& c) {
         if (v.as_dict() == nullptr) throw Problem("dictsort needs a dict, not " + v.type());
         const bool cased = c.get(0, "case_sensitive", false).truth();
         const std::string by = c.get(1, "by", "key").text("dictsort");
         std::vector<Value> pairs;
         for (const auto& [key, value] : (*v.as_dict())->items)
           pairs.push_back(Value::list({key, value}, true));
         sort_by(pairs, c.get(2, "reverse", false).truth(), c.budget, [&](const Value& pair) {
           return folded((*pair.items())[by == "value" ? 1 : 0], cased);
         });
         return Value::list(std::move(pairs));
       }},
      {"first",
       [](const Value& v, const Call& c) -> Value {
         const auto items = iterated(v, c.budget);
         return items.empty() ? Value(Undefined{"the first of nothing"}) : items.front();
       }},
      {"float", as_float},
      {"indent", indented},
      {"int", as_int},
      {"items",
       [](const Value& v, const Call& c) {
         if (v.is_undefined()) return Value::list({});
         if (v.as_dict() == nullptr) throw Problem("items needs a dict, not " + v.type());
         const Value method = attribute_of(v, "items", c.budget);
         return (*method.as<std::shared_ptr<Function>>())->call({});
       }},
      {"join",
       [](const Value& v, const Call& c) -> Value {
         const std::string by = c.get(0, "d", "").str(c.budget);
         const Value attribute = c.get(1, "attribute", nullptr);
         std::string result;
         bool first = true;
         for (const Value& item : iterated(v, c.budget)) {
           const Value one = attribute.is_none() ? item : attribute_at(item, attribute, c.budget);
           result += (first ? "" : by) + one.str(c.budget);
           Budget::check_size(result.size());
           first = false;
         }
         return result;
       }},
      {"last",
       [](const Value& v, const Call& c) -> Value {
         const auto items = iterated(v, c.budget);
         return items.empty() ? Value(Undefined{"the last of nothing"}) : items.back();
       }},
      {"length", kLength},
      {"list", [](const Value& v, const Call& c) { return Value::list(iterated(v, c.budget)); }},
      {"lower",
       [](const Value& v, const Call& c) -> Value { return unicode::lower(v.str(c.budget)); }},
      {"map", mapped},
      {"max", [](const Value& v, const Call& c) { return extreme(v, c, true); }},
      {"min", [](const Value& v, const Call& c) { return extreme(v, c, false); }},
      {"reject", [](const Value& v, const Call& c) { return selected(v, c, false, false); }},
      {"rejectattr", [](const Value& v, const Call& c) { return selected(v, c, true, false); }},
      {"replace",
       [](const Value& v, const Call& c) -> Value {
         return replaced(v.str(c.budget), c.get(0, "old").text("replace"),
                         c.get(1, "new").text("replace"), c.get(2, "count", int64_t{-1}).integer());
       }},
      {"reverse",
       [](const Value& v, const Call& c) -> Value {
         std::vector<Value> items = iterated(v, c.budget);
         std::reverse(items.begin(), items.end());
         if (v.as<std::string>() == nullptr) return Value::list(std::move(items));
         std::string text;
         for (const Value& item : items) text += *item.as<std::string>();
         return text;
       }},
      {"round", rounded},
      {"safe", [](const Value& v, const Call&) { return v; }},  // nothing is escaped
      {"select", [](const Value& v, const Call& c) { return selected(v, c, false, true); }},
      {"selectattr", [](const Value& v, const Call& c) { return selected(v, c, true, true); }},
      {"sort",
       [](const Value& v, const Call& c) {
         std::vector<Value> items = iterated(v, c.budget);
         const bool cased = c.get(1, "case_sensitive", false).truth();
         const Value attribute = c.get(2, "attribute", nullptr);
         sort_by(items, c.get(0, "reverse", false).truth(), c.budget, [&](const Value& item) {
           return folded(attribute.is_none() ? item : attribute_at(item, attribute, c.budget),
                         cased);
         });
         return Value::list(std::move(items));
       }},
      {"string", [](const Value& v, const Call& c) -> Value { return v.str(c.budget); }},
      {"sum", summed},
      {"title",
       [](const Value& v, const Call& c) -> Value {
         std::string result;
         bool starts = true;
         const std::string text = v.str(c.budget);
         for (const unicode::Character& character : unicode::characters(text)) {
           const std::string one = character.span.of(text);
           result += starts ? unicode::upper(one) : unicode::lower(one);
           starts =
               python_blank_start(one) > 0 || std::string("-({[<").find(one) != std::string::npos;
         }
         return result;
       }},
      {"tojson", as_json},
      {"trim",
       [](const Value& v, const Call& c) -> Value {
         return stripped(v.str(c.budget), c.get(0, "chars", nullptr), true, true);
       }},
      {"unique",
       [](const Value& v, const Call& c) {
         const bool cased = c.get(0, "case_sensitive", false).truth();
         std::vector<Value> kept;
         for (const Value& item : iterated(v, c.budget)) {
           if (std::none_of(kept.begin(), kept.end(), [&](const Value& other) {
                 return equal(folded(other, cased), folded(item, cased), c.budget);
               }))
             kept.push_back(item);
         }
         return Value::list(std::move(kept));
       }},
      {"upper",
       [](const Value& v, const Call& c) -> Value { return unicode::upper(v.str(c.budget)); }},
  };
  return kFilters;
}

bool contains(const Value& all, const Value& one, Budget& budget) {
  if (const auto* const text = all.as<std::string>())
    return text->find(one.text("in")) != std::string::npos;
  if (all.as_dict() != nullptr)
    return one.as<std::string>() != nullptr && (*all.as_dict())->find(*one.as<std::string>());
  const auto items = iterated(all, budget);
  return std::any_of(items.begin(), items.end(),
                     [&](const Value& item) { return equal(item, one, budget); });
}

bool is_integer(const Value& v) { return v.as<int64_t>() != nullptr; }
bool is_sequence(const Value& v) {
  return v.items() || v.as<std::string>() || v.as_dict();  // as Jinja: what has a length
}
int64_t remainder_of(const Value& v, int64_t by) {
  if (by == 0) throw Problem("it divides by 0");
  return by == -1 ? 0 : v.integer() % by;
}

const std::map<std::string, Test>& tests() {
  static const Test kEqual = [](const Value& v, const Call& c) {
    return equal(v, c.get(0, "other"), c.budget);
  };
  static const Test kDiffers = [](const Value& v, const Call& c) {
    return !equal(v, c.get(0, "other"), c.budget);
  };
  static const Test kLess = [](const Value& v, const Call& c) {
    return less(v, c.get(0, "other"), c.budget);
  };
  static const Test kGreater = [](const Value& v, const Call& c) {
    return less(c.get(0, "other"), v, c.budget);
  };
  static const Test kAtMost = [](const Value& v, const Call& c) {
    return !less(c.get(0, "other"), v, c.budget);
  };
  static const Test kAtLeast = [](const Value& v, const Call& c) {
    return !less(v, c.get(0, "other"), c.budget);
  };
  static const std::map<std::string, Test> kTests = {
      {"!=", kDiffers},
      {"<", kLess},
      {"<=", kAtMost},
      {"==", kEqual},
      {">", kGreater},
      {">=", kAtLeast},
      {"boolean", [](const Value& v, const Call&) { return v.as<bool>() != nullptr; }},
      {"callable",
       [](const Value& v, const Call&) { return v.as<std::shared_ptr<Function>>() != nullptr; }},
      {"defined", [](const Value& v, const Call&) { return !v.is_undefined(); }},
      {"divisibleby",
       [](const Value& v, const Call& c) {
         return remainder_of(v, c.get(0, "num").integer()) == 0;
       }},
      {"eq", kEqual},
      {"equalto", kEqual},
      {"even", [](const Value& v, const Call&) { return remainder_of(v, 2) == 0; }},
      {"false", [](const Value& v, const Call&) { return v.as<bool>() != nullptr && !v.truth(); }},
      {"filter",
       [](const Value& v, const Call&) {
         return v.as<std::string>() && is_filter(*v.as<std::string>());
       }},
      {"float", [](const Value& v, const Call&) { return v.as<double>() != nullptr; }},
      {"ge", kAtLeast},
      {"greaterthan", kGreater},
      {"gt", kGreater},
      {"in", [](const Value& v, const Call& c) { return contains(c.get(0, "seq"), v, c.budget); }},
      {"integer", [](const Value& v, const Call&) { return is_integer(v); }},
      {"iterable", [](const Value& v, const Call&) { return is_sequence(v) || v.is_undefined(); }},
      {"le", kAtMost},
      {"lessthan", kLess},
      {"lower",
       [](const Value& v, const Call& c) {
         const std::string text = v.str(c.budget);
         return unicode::lower(text) == text && unicode::upper(text) != text;
       }},
      {"lt", kLess},
      {"mapping",
       [](const Value& v, const Call&) {
         return v.as_dict() != nullptr && !(*v.as_dict())->is_namespace;
       }},
      {"ne", kDiffers},
      {"none", [](const Value& v, const Call&) { return v.is_none(); }},
      {"number", [](const Value& v, const Call&) { return v.is_number(); }},
      {"odd", [](const Value& v, const Call&) { return remainder_of(v, 2) != 0; }},
      {"sequence", [](const Value& v, const Call&) { return is_sequence(v); }},
      {"string", [](const Value& v, const Call&) { return v.as<std::string>() != nullptr; }},
      {"test", [](const Value& v,
                  const Call&) { return v.as<std::string>() && is_test(*v.as<std::string>()); }},
      {"true", [](const Value& v, const Call&) { return v.as<bool>() != nullptr && v.truth(); }},
      {"undefined", [](const Value& v, const Call&) { return v.is_undefined(); }},
      {"upper",
       [](const Value& v, const Call& c) {
         const std::string text = v.str(c.budget);
         return unicode::upper(text) == text && unicode::lower(text) != text;
       }},
  };
  return kTests;
}

}  // namespace

bool is_filter(const std::string& name) { return filters().contains(name); }
bool is_test(const std::string& name) { return tests().contains(name); }

Value filtered(const std::string& name, const Value& input, const Arguments& arguments,
               Budget& budget) {
  return filters().at(name)(input, Call{name, arguments, budget});
}

bool tested(const std::string& name, const Value& input, const Arguments& arguments,
            Budget& budget) {
  return tests().at(name)(input, Call{name, arguments, budget});
}

}  // namespace coupler::jinja
