#include "config/toml.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "base/error.h"

namespace coupler::config {
namespace {

class NestingScanner {
 public:
  NestingScanner(std::string_view text, int max_depth) : text_(text), max_depth_(max_depth) {}

  std::optional<TextPosition> scan() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (c == '"' || c == '\'') {
        skip_string(c);
      } else {
        count(c);
        ++at_;
        if (depth_ > max_depth_) return position();
      }
    }
    return std::nullopt;
  }

 private:
  // The dots of the current key deepen everything up to the next key of the same level.
  void count(char c) {
    if (c == '[' || c == '{') {
      dots_.push_back(0);
      ++depth_;
    } else if ((c == ']' || c == '}') && dots_.size() > 1) {
      depth_ -= dots_.back() + 1;
      dots_.pop_back();
    } else if (c == '.') {
      ++dots_.back();
      ++depth_;
    } else if (c == ',' || (c == '\n' && dots_.size() == 1)) {
      depth_ -= dots_.back();
      dots_.back() = 0;
    }
  }

  void skip_string(char quote) {
    const std::string triple(3, quote);
    const bool multi_line = text_.substr(at_, 3) == triple;
    const std::string_view end = std::string_view(triple).substr(0, multi_line ? 3 : 1);
    at_ += end.size();
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '\\' && quote == '"') {
        at_ += 2;
      } else if (c == '\n' && !multi_line) {
        return;  // unterminated: the parser will complain
      } else if (text_.substr(at_, end.size()) == end) {
        at_ += end.size();
        while (multi_line && at_ < text_.size() && text_[at_] == quote) ++at_;  // up to two more
        return;
      } else {
        ++at_;
      }
    }
    at_ = text_.size();
  }

  TextPosition position() const {
    const std::string_view before = text_.substr(0, at_ - 1);
    const size_t newline = before.rfind('\n');
    return {static_cast<size_t>(std::count(before.begin(), before.end(), '\n')) + 1,
            newline == std::string_view::npos ? before.size() + 1 : before.size() - newline};
  }

  std::string_view text_;
  int max_depth_;
  size_t at_ = 0;
  int depth_ = 0;
  std::vector<int> dots_ = {0};
};

}  // namespace

std::optional<TextPosition> find_deep_nesting(std::string_view text, int max_depth) {
  return NestingScanner(text, max_depth).scan();
}

// Some invalid input fails toml++'s assertions, which release builds turn into assumptions and thus
// undefined behavior. Here its assertions are always checked: they throw.
struct TomlAssertionFailed {};
[[noreturn]] static void fail_toml_assertion() { throw TomlAssertionFailed(); }

}  // namespace coupler::config

#undef NDEBUG
#define TOML_ASSERT(condition) \
  (static_cast<bool>(condition) ? static_cast<void>(0) : ::coupler::config::fail_toml_assertion())
#include <toml++/toml.h>

namespace coupler::config {
namespace {

constexpr const char* kSyntaxHint = "https://toml.io shows the syntax";

TextPosition to_position(const toml::source_region& region) {
  return {region.begin.line, region.begin.column};
}

bool is_bare_key(std::string_view part) {
  const auto is_bare = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  };
  return !part.empty() && std::all_of(part.begin(), part.end(), is_bare);
}

RawValue to_raw(const toml::array& array) {
  std::vector<std::string> texts;
  for (const toml::node& item : array) {
    const auto* text = item.as_string();
    if (text == nullptr) return OtherValue{"list with values that are not strings"};
    texts.push_back(text->get());
  }
  return texts;
}

RawValue to_raw(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* integer = node.as_integer()) return integer->get();
  if (const auto* number = node.as_floating_point()) return number->get();
  if (const auto* boolean = node.as_boolean()) return boolean->get();
  if (const auto* array = node.as_array()) return to_raw(*array);
  if (node.is_table()) return OtherValue{"table"};
  return OtherValue{"date or time"};
}

// Recursion is bounded by find_deep_nesting.
void flatten(const toml::table& table, const std::string& prefix, std::vector<TomlEntry>& entries) {
  for (const auto& [key, node] : table) {
    const std::string_view part = key.str();
    std::string full = prefix.empty() ? "" : prefix + ".";
    full += is_bare_key(part) ? std::string(part) : render(SettingValue(std::string(part)));
    const toml::table* inner = node.as_table();
    if (inner != nullptr && !inner->empty()) {
      flatten(*inner, full, entries);
    } else {
      entries.push_back(
          {full, to_raw(node), to_position(key.source()), to_position(node.source())});
    }
  }
}

[[noreturn]] void fail_at(std::string_view name, TextPosition at, const std::string& what,
                          const std::string& hint) {
  fail_config(fmt::format("{}:{}:{}: {}", name, at.line, at.column, what), name, hint);
}

bool fails_assertion(std::string_view text) {
  try {
    static_cast<void>(toml::parse(text));
  } catch (const toml::parse_error&) {
    return false;
  } catch (const TomlAssertionFailed&) {
    return true;
  }
  return false;
}

// The line at which parsing fails an assertion. The parser reads from front to end, so every prefix
// that contains that line fails, and shorter ones do not.
size_t line_of_failed_assertion(std::string_view text) {
  std::vector<size_t> ends;  // of lines
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '\n') ends.push_back(at + 1);
  }
  ends.push_back(text.size());
  const auto fails = [&](size_t end) { return fails_assertion(text.substr(0, end)); };
  const auto line =
      std::partition_point(ends.begin(), ends.end(), [&](size_t end) { return !fails(end); });
  return std::min(static_cast<size_t>(line - ends.begin()) + 1, ends.size());
}

}  // namespace

std::vector<TomlEntry> read_toml(std::string_view text, std::string_view name) {
  if (text.size() > kMaxTomlBytes) {
    fail_config(fmt::format("{}: larger than {} bytes", name, kMaxTomlBytes), name,
                "is this a configuration file?");
  }
  if (const auto deep = find_deep_nesting(text)) {
    fail_at(name, *deep, fmt::format("nested deeper than {} levels", kMaxTomlDepth),
            "Coupler's keys never nest that deep: look for a bracket that is never closed");
  }
  std::vector<TomlEntry> entries;
  try {
    flatten(toml::parse(text, name), "", entries);
  } catch (const toml::parse_error& error) {
    fail_at(name, to_position(error.source()), fmt::format("invalid TOML: {}", error.description()),
            kSyntaxHint);
  } catch (const TomlAssertionFailed&) {
    fail_at(name, {line_of_failed_assertion(text), 1}, "invalid TOML: this line cannot be parsed",
            kSyntaxHint);
  }
  std::stable_sort(entries.begin(), entries.end(), [](const TomlEntry& a, const TomlEntry& b) {
    return std::tie(a.key_position.line, a.key_position.column) <
           std::tie(b.key_position.line, b.key_position.column);
  });
  return entries;
}

std::optional<std::vector<TomlEntry>> read_toml_value(std::string_view key, std::string_view text) {
  // Without line breaks the value cannot add keys of its own.
  if (text.size() > kMaxTomlBytes || text.find_first_of("\r\n") != std::string_view::npos ||
      find_deep_nesting(text)) {
    return std::nullopt;
  }
  try {
    const toml::table table = toml::parse("value = " + std::string(text));
    std::vector<TomlEntry> entries;
    const toml::node* node = table.get("value");
    const toml::table* inner = node->as_table();
    if (inner != nullptr && !inner->empty()) {
      flatten(*inner, std::string(key), entries);
    } else {
      entries.push_back({std::string(key), to_raw(*node), {}, {}});
    }
    return entries;
  } catch (const toml::parse_error&) {
    return std::nullopt;  // the caller takes it as a string
  } catch (const TomlAssertionFailed&) {
    return std::nullopt;
  }
}

}  // namespace coupler::config
