// Attributes, elements and methods of values, and global functions.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <iterator>
#include <limits>
#include <map>

#include "jinja/arguments.h"
#include "jinja/functions.h"
#include "unicode.h"

namespace coupler::jinja {
namespace {

using Text = std::string;
using Pieces = std::vector<Value>;

Value python_split(const Text& text, const Value& separator, int64_t most, bool from_right) {
  std::vector<std::pair<size_t, size_t>> parts;  // begin and end
  const auto counts = [&] { return most < 0 || static_cast<int64_t>(parts.size()) < most; };
  if (separator.is_none()) {
    if (from_right && most >= 0) throw Problem("rsplit needs a separator here", true);
    size_t at = python_blank_start(text);
    while (at < text.size()) {
      size_t end = at;
      if (!counts()) {
        end = text.size();
      } else {
        while (end < text.size() && python_blank_start(std::string_view(text).substr(end)) == 0)
          end += unicode::characters(std::string_view(text).substr(end, 4)).front().span.end;
      }
      parts.emplace_back(at, end);
      at = end + python_blank_start(std::string_view(text).substr(end));
    }
  } else {
    const Text& by = separator.text("split");
    if (by.empty()) throw Problem("split needs a separator that is not empty");
    size_t begin = 0, end = text.size();
    if (from_right) {
      for (size_t at = text.rfind(by); at != Text::npos && counts();
           at = at == 0 ? Text::npos : text.rfind(by, at - 1)) {
        if (at + by.size() > end) continue;
        parts.emplace_back(at + by.size(), end);
        end = at;
      }
      parts.emplace_back(0, end);
      std::reverse(parts.begin(), parts.end());
    } else {
      for (size_t at = text.find(by); at != Text::npos && counts(); at = text.find(by, begin)) {
        parts.emplace_back(begin, at);
        begin = at + by.size();
      }
      parts.emplace_back(begin, end);
    }
  }
  Pieces pieces;
  for (const auto& [begin, end] : parts) pieces.emplace_back(text.substr(begin, end - begin));
  return Value::list(std::move(pieces));
}

Value python_splitlines(const Text& text, bool keep_ends) {
  Pieces lines;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find_first_of("\r\n", begin), text.size());
    const size_t next = end + (end < text.size() ? 1 : 0) + (text.compare(end, 2, "\r\n") == 0);
    lines.emplace_back(text.substr(begin, (keep_ends ? next : end) - begin));
    begin = next;
  }
  return Value::list(std::move(lines));
}

bool affixed(const Value& affix, const char* name, Budget& budget,
             const std::function<bool(const Text&)>& fits) {
  if (!affix.is_tuple()) return fits(affix.text(name));
  for (const Value& one : iterated(affix, budget)) {
    if (fits(one.text(name))) return true;
  }
  return false;
}

using StringMethod = Value (*)(const Text& text, const Call& call);
const std::map<Text, StringMethod>& string_methods() {
  static const std::map<Text, StringMethod> kMethods = {
      {"capitalize", [](const Text& t, const Call&) -> Value { return capitalized(t); }},
      {"count",
       [](const Text& t, const Call& c) -> Value {
         const Text part = c.get(0, "").text("count");
         if (part.empty()) return static_cast<int64_t>(unicode::characters(t).size() + 1);
         return static_cast<int64_t>(unicode::Pattern::literal(part).find(t).size());
       }},
      {"endswith",
       [](const Text& t, const Call& c) -> Value {
         return affixed(c.get(0, ""), "endswith", c.budget,
                        [&](const Text& end) { return t.ends_with(end); });
       }},
      {"find",
       [](const Text& t, const Call& c) -> Value {
         const size_t at = t.find(c.get(0, "").text("find"));
         if (at == Text::npos) return int64_t{-1};
         return static_cast<int64_t>(unicode::characters(t.substr(0, at)).size());
       }},
      {"isdigit",
       [](const Text& t, const Call&) -> Value {
         return !t.empty() &&
                std::all_of(t.begin(), t.end(), [](char d) { return d >= '0' && d <= '9'; });
       }},
      {"isspace",
       [](const Text& t, const Call&) -> Value {
         return !t.empty() && python_blank_start(t) == t.size();
       }},
      {"join",
       [](const Text& t, const Call& c) -> Value {
         Text result;
         bool first = true;
         for (const Value& item : iterated(c.get(0, ""), c.budget)) {
           result += (first ? "" : t) + item.text("join");
           Budget::check_size(result.size());
           first = false;
         }
         return result;
       }},
      {"lower", [](const Text& t, const Call&) -> Value { return unicode::lower(t); }},
      {"lstrip",
       [](const Text& t, const Call& c) -> Value {
         return stripped(t, c.get(0, "chars", nullptr), true, false);
       }},
      {"removeprefix",
       [](const Text& t, const Call& c) -> Value {
         const Text part = c.get(0, "").text("removeprefix");
         return t.starts_with(part) ? t.substr(part.size()) : t;
       }},
      {"removesuffix",
       [](const Text& t, const Call& c) -> Value {
         const Text part = c.get(0, "").text("removesuffix");
         return t.ends_with(part) ? t.substr(0, t.size() - part.size()) : t;
       }},
      {"replace",
       [](const Text& t, const Call& c) -> Value {
         return replaced(t, c.get(0, "").text("replace"), c.get(1, "").text("replace"),
                         c.get(2, "count", int64_t{-1}).integer());
       }},
      {"rsplit",
       [](const Text& t, const Call& c) {
         return python_split(t, c.get(0, "sep", nullptr),
                             c.get(1, "maxsplit", int64_t{-1}).integer(), true);
       }},
      {"rstrip",
       [](const Text& t, const Call& c) -> Value {
         return stripped(t, c.get(0, "chars", nullptr), false, true);
       }},
      {"split",
       [](const Text& t, const Call& c) {
         return python_split(t, c.get(0, "sep", nullptr),
                             c.get(1, "maxsplit", int64_t{-1}).integer(), false);
       }},
      {"splitlines",
       [](const Text& t, const Call& c) {
         return python_splitlines(t, c.get(0, "keepends", false).truth());
       }},
      {"startswith",
       [](const Text& t, const Call& c) -> Value {
         return affixed(c.get(0, ""), "startswith", c.budget,
                        [&](const Text& start) { return t.starts_with(start); });
       }},
      {"strip",
       [](const Text& t, const Call& c) -> Value {
         return stripped(t, c.get(0, "chars", nullptr), true, true);
       }},
      {"title",
       [](const Text& t, const Call&) -> Value {
         Text result;
         bool in_word = false;
         for (const unicode::Character& character : unicode::characters(t)) {
           const Text one = character.span.of(t);
           result += in_word ? unicode::lower(one) : unicode::title(one);
           in_word = unicode::lower(one) != unicode::upper(one);
         }
         return result;
       }},
      {"upper", [](const Text& t, const Call&) -> Value { return unicode::upper(t); }},
  };
  return kMethods;
}

Value pair_of(const std::pair<Text, Value>& entry) {
  return Value::list({entry.first, entry.second}, /*is_tuple=*/true);
}

using DictMethod = Value (*)(const Dict& dict, const Call& call);
const std::map<Text, DictMethod>& dict_methods() {
  static const std::map<Text, DictMethod> kMethods = {
      {"get",
       [](const Dict& d, const Call& c) {
         const Value* const found = d.find(c.get(0, "").text("get"));
         return found != nullptr ? *found : c.get(1, "default", nullptr);
       }},
      {"items",
       [](const Dict& d, const Call&) {
         Pieces pairs;
         std::transform(d.items.begin(), d.items.end(), std::back_inserter(pairs), pair_of);
         return Value::list(std::move(pairs));
       }},
      {"keys",
       [](const Dict& d, const Call&) {
         Pieces keys;
         for (const auto& [key, value] : d.items) keys.emplace_back(key);
         return Value::list(std::move(keys));
       }},
      {"values",
       [](const Dict& d, const Call&) {
         Pieces values;
         for (const auto& [key, value] : d.items) values.push_back(value);
         return Value::list(std::move(values));
       }},
  };
  return kMethods;
}

using ListMethod = Value (*)(const Pieces& items, const Call& call);
const std::map<Text, ListMethod>& list_methods() {
  static const std::map<Text, ListMethod> kMethods = {
      {"count",
       [](const Pieces& items, const Call& c) -> Value {
         return static_cast<int64_t>(
             std::count_if(items.begin(), items.end(),
                           [&](const Value& item) { return equal(item, c.get(0, ""), c.budget); }));
       }},
      {"index",
       [](const Pieces& items, const Call& c) -> Value {
         for (size_t i = 0; i < items.size(); ++i) {
           if (equal(items[i], c.get(0, ""), c.budget)) return static_cast<int64_t>(i);
         }
         throw Problem("'index' does not find the value");
       }},
  };
  return kMethods;
}

// The method of a value, bound to it; undefined if there is none. inner: of the value, what the
// method takes.
template <class Methods, class Inner>
Value bound(const Methods& methods, const Text& name, const Value& value, const Inner& inner,
            Budget& budget) {
  const auto found = methods.find(name);
  if (found == methods.end()) return Undefined{name};
  return std::make_shared<Function>(
      Function{name, [method = found->second, value, inner, &budget, name](const Arguments& given) {
                 return method(inner(value), Call{name, given, budget});
               }});
}

// Python's indices count from the end if they are negative.
std::pair<int64_t, int64_t> slice_bounds(const Value& from, const Value& to, int64_t step,
                                         int64_t size) {
  const int64_t lowest = step > 0 ? 0 : -1, highest = step > 0 ? size : size - 1;
  const auto place = [&](const Value& index, int64_t otherwise) {
    if (index.is_none()) return otherwise;
    const int64_t given = index.integer();
    return std::clamp(given < 0 ? std::max(given, -size) + size : given, lowest, highest);
  };
  const auto at_start = [&](const Value& index, int64_t otherwise) {
    // With a negative step, what lies before the start is -1, not the last element.
    if (!index.is_none() && step < 0 && index.integer() < -size) return int64_t{-1};
    return place(index, otherwise);
  };
  return {at_start(from, step > 0 ? 0 : size - 1), at_start(to, step > 0 ? size : -1)};
}

Value time_now(const Text& format) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  if (format.empty()) return "";
  if (format.size() > 200) throw Problem("strftime_now has a format of more than 200 characters");
  char buffer[4096];
  return Text(buffer, std::strftime(buffer, sizeof buffer, format.c_str(), &local));
}

Value python_range(const Call& call) {
  const bool one = call.arguments.positional.size() == 1;
  const int64_t from = one ? 0 : call.get(0, "").integer();
  const int64_t to = call.get(one ? 0 : 1, "").integer();
  const int64_t step = call.get(2, "step", int64_t{1}).integer();
  if (step == 0) throw Problem("range has a step of 0");
  Pieces numbers;
  // As Jinja's sandbox.
  constexpr size_t kMost = 100'000;
  for (int64_t i = from; step > 0 ? i < to : i > to;) {
    if (numbers.size() == kMost) throw Problem("range has more than 100000 numbers");
    numbers.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  call.budget.spend(numbers.size());
  return Value::list(std::move(numbers));
}

Value python_dict(const Call& call) {
  std::vector<std::pair<Text, Value>> items;
  for (const Value& given : call.arguments.positional) {
    if (given.as_dict() == nullptr) throw Problem("'" + call.name + "' takes dicts and names");
    items = (*given.as_dict())->items;
  }
  items.insert(items.end(), call.arguments.named.begin(), call.arguments.named.end());
  return Value::dict(std::move(items));
}

}  // namespace

Value attribute_of(const Value& value, const std::string& name, Budget& budget) {
  if (value.is_undefined()) throw Problem("it reads '" + name + "' of " + value.type());
  if (value.as_dict() != nullptr) {
    const Dict& dict = **value.as_dict();
    if (!dict.is_namespace) {
      Value method = bound(
          dict_methods(), name, value,
          [](const Value& of) -> const Dict& { return **of.as_dict(); }, budget);
      if (!method.is_undefined()) return method;
    }
    const Value* const found = dict.find(name);
    return found != nullptr ? *found : Undefined{name};
  }
  if (value.as<std::string>() != nullptr)
    return bound(
        string_methods(), name, value,
        [](const Value& of) -> const Text& { return *of.as<Text>(); }, budget);
  if (value.items() != nullptr)
    return bound(
        list_methods(), name, value, [](const Value& of) -> const Pieces& { return *of.items(); },
        budget);
  return Undefined{name};
}

Value element_of(const Value& value, const Value& key, Budget& budget) {
  if (value.is_undefined()) throw Problem("it reads an element of " + value.type());
  if (const auto* const name = key.as<std::string>()) {
    if (value.as_dict() == nullptr) return attribute_of(value, *name, budget);
    const Value* const found = (*value.as_dict())->find(*name);
    return found != nullptr ? *found : attribute_of(value, *name, budget);
  }
  if (!key.as<int64_t>() && !key.as<bool>()) return Undefined{"an element"};
  if (value.items() == nullptr && value.as<std::string>() == nullptr)
    return Undefined{"an element"};
  const std::vector<Value> items =
      value.items() != nullptr ? std::vector<Value>() : iterated(value, budget);
  const std::vector<Value>& all = value.items() != nullptr ? *value.items() : items;
  const auto size = static_cast<int64_t>(all.size());
  const int64_t at = key.integer() < 0 ? key.integer() + size : key.integer();
  if (at < 0 || at >= size) return Undefined{fmt::format("element {}", key.integer())};
  return all[static_cast<size_t>(at)];
}

Value slice_of(const Value& value, const Value& from, const Value& to, const Value& step_of,
               Budget& budget) {
  if (value.items() == nullptr && value.as<std::string>() == nullptr)
    throw Problem("it takes a slice of " + value.type());
  const std::vector<Value> all = iterated(value, budget);
  const int64_t step = step_of.is_none() ? 1 : step_of.integer();
  if (step == 0) throw Problem("a slice has a step of 0");
  const auto [begin, end] = slice_bounds(from, to, step, static_cast<int64_t>(all.size()));
  std::vector<Value> taken;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    taken.push_back(all[static_cast<size_t>(i)]);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  if (value.items() != nullptr) return Value::list(std::move(taken), value.is_tuple());
  std::string text;
  for (const Value& character : taken) text += *character.as<std::string>();
  return text;
}

std::vector<std::pair<std::string, Value>> global_functions(
    Budget& budget, std::vector<std::shared_ptr<Dict>>& namespaces) {
  std::vector<std::pair<std::string, Value>> result;
  const auto add = [&](const char* name, auto function) {
    result.emplace_back(name, std::make_shared<Function>(
                                  Function{name, [name, function, &budget](const Arguments& given) {
                                             return function(Call{name, given, budget});
                                           }}));
  };
  add("range", python_range);
  add("dict", python_dict);
  add("namespace", [&namespaces](const Call& call) {
    Value made = python_dict(call);
    const auto& dict = *made.as_dict();
    dict->is_namespace = true;
    dict->depth = 1;
    call.budget.spend();
    namespaces.push_back(dict);
    return made;
  });
  add("raise_exception", [](const Call& call) -> Value {
    throw Problem("the template refuses these messages: " +
                  call.get(0, "message").str(call.budget));
  });
  add("strftime_now",
      [](const Call& call) { return time_now(call.get(0, "format").text("strftime_now")); });
  return result;
}

Value joined(const Value& a, const Value& b, Budget& budget) {
  if (a.items() != nullptr && b.items() != nullptr && a.is_tuple() == b.is_tuple()) {
    std::vector<Value> all = *a.items();
    all.insert(all.end(), b.items()->begin(), b.items()->end());
    budget.spend(all.size());
    return Value::list(std::move(all), a.is_tuple());
  }
  const auto *const left = a.as<std::string>(), *const right = b.as<std::string>();
  if (left == nullptr || right == nullptr)
    throw Problem(fmt::format("it adds {} and {}", a.type(), b.type()));
  Budget::check_size(left->size() + right->size());
  return *left + *right;
}

Value repeated(const Value& value, int64_t count, Budget& budget) {
  const auto times = static_cast<size_t>(std::max<int64_t>(count, 0));
  if (const auto* const text = value.as<std::string>()) {
    if (!text->empty() && times > Budget::kBytes / text->size())
      Budget::check_size(Budget::kBytes + 1);
    std::string result;
    for (size_t i = 0; i < (text->empty() ? 0 : times); ++i) result += *text;
    return result;
  }
  std::vector<Value> all;
  for (size_t i = 0; i < (value.items()->empty() ? 0 : times); ++i) {
    budget.spend(value.items()->size());
    all.insert(all.end(), value.items()->begin(), value.items()->end());
  }
  return Value::list(std::move(all), value.is_tuple());
}

}  // namespace coupler::jinja
