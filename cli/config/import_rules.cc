#include "cli/config/import_rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>

#include "base/text.h"
#include "config/schema.h"

namespace coupler::cli {
namespace {

// Sets the key if the schema accepts the value. A backend's own keys are not in the schema; their
// rules check the value.
std::string set_if_right(ConfigDraft& draft, const std::string& key, const OptionValue& value) {
  const SchemaKey* known = find_key(key);
  const SettingValue setting =
      std::visit([](const auto& held) { return SettingValue(held); }, value);
  if (known != nullptr && known->accepts != nullptr && !known->accepts(setting))
    return fmt::format("{} must be {}: left at its default", key, known->constraint);
  draft.set(key, value);
  return {};
}

void apply_rule(const ImportRules& rules, const std::string& key, const std::string& value,
                Import& result) {
  ImportedKey imported{key, value, {}, {}};
  const auto rule = rules.find(key);
  if (rule == rules.end()) {
    std::vector<std::string> known;
    for (const auto& [name, unused] : rules) known.push_back(name);
    const std::string nearest = nearest_name(key, known);
    imported.why =
        nearest.empty() ? "unknown key" : fmt::format("unknown key; did you mean '{}'?", nearest);
  } else {
    const auto before = result.draft.entries();
    imported.why = rule->second(result.draft, value);
    for (const auto& entry : result.draft.entries()) {
      if (std::find(before.begin(), before.end(), entry) == before.end())
        imported.ours.push_back(entry.first);
    }
    if (imported.ours.empty() && imported.why.empty()) imported.why = "already set";
  }
  result.keys.push_back(std::move(imported));
}

}  // namespace

std::string left_open() { return "unspecified there; left at its default"; }

std::string refused(const std::string& value, const std::string& what) {
  return fmt::format("'{}' is not {}: left at its default", shown(value), what);
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

bool is_left_open(const std::string& value) {
  const std::string text = lower(value);
  return text.empty() || text == "auto" || text == "null" || text == "none" || text == "~";
}

bool is_off(const std::string& value) {
  const std::string text = lower(value);
  return text == "false" || text == "no" || text == "off" || text == "0";
}

bool is_on(const std::string& value) {
  const std::string text = lower(value);
  return text == "true" || text == "yes" || text == "on" || text == "1";
}

std::optional<int64_t> integer_of(const std::string& value) {
  // DeepSpeed's JSON has 5e8. Other forms that strtod accepts are not counts.
  if (value.find_first_not_of("+-.0123456789eE") != std::string::npos) return std::nullopt;
  char* end = nullptr;
  const double number = std::strtod(value.c_str(), &end);
  constexpr double kMost = 9007199254740992.0;  // 2^53: every whole number up to it is exact
  if (value.empty() || *end != '\0' || !(std::fabs(number) <= kMost) ||
      number != std::trunc(number)) {
    return std::nullopt;
  }
  return static_cast<int64_t>(number);
}

ImportRule as_text(const std::string& key) {
  return [key](ConfigDraft& draft, const std::string& value) -> std::string {
    if (is_left_open(value)) return left_open();
    return set_if_right(draft, key, value);
  };
}

ImportRule as_word(const std::string& key, const std::vector<std::string>& words) {
  return [key, words](ConfigDraft& draft, const std::string& value) -> std::string {
    const std::string text = lower(value);
    if (std::find(words.begin(), words.end(), text) != words.end())
      return set_if_right(draft, key, text);
    if (is_left_open(value)) return left_open();
    return fmt::format("'{}' is not one of {}: left at its default", shown(value),
                       fmt::join(words, ", "));
  };
}

ImportRule as_integer(const std::string& key, int64_t least, int64_t most) {
  return [key, least, most](ConfigDraft& draft, const std::string& value) -> std::string {
    if (is_left_open(value)) return left_open();
    const auto number = integer_of(value);
    if (!number) return refused(value, "a whole number");
    const bool in_schema = find_key(key) != nullptr;  // the schema has its own limits
    if (!in_schema && (*number < least || *number > most)) {
      const std::string range =
          most == INT64_MAX ? fmt::format(">= {}", least) : fmt::format("{} to {}", least, most);
      return fmt::format("{} must be {}: left at its default", key, range);
    }
    return set_if_right(draft, key, *number);
  };
}

ImportRule as_boolean(const std::string& key) {
  return [key](ConfigDraft& draft, const std::string& value) -> std::string {
    if (is_left_open(value)) return left_open();
    if (!is_on(value) && !is_off(value)) return refused(value, "yes or no");
    return set_if_right(draft, key, is_on(value));
  };
}

ImportRule without(const std::string& why) {
  return [why](ConfigDraft&, const std::string&) { return why; };
}

ImportRule without_unless_off(const std::string& why) {
  return [why](ConfigDraft&, const std::string& value) {
    if (is_left_open(value)) return left_open();
    return is_off(value) ? "off; nothing to set" : why;
  };
}

ImportRule word_of_launch(const std::string& words) {
  return [words](ConfigDraft&, const std::string& value) {
    if (is_left_open(value)) return left_open();
    return "an option of coupler launch: " + fmt::format(fmt::runtime(words), shown(value));
  };
}

void apply_rules(const ImportRules& rules, const TableAnswer& answer, const ImportEntries& entries,
                 Import& result) {
  for (const auto& [key, value] : entries) {
    const std::string why = rules.count(key) != 0 ? "" : answer(key.substr(0, key.find('.')));
    if (why.empty()) {
      apply_rule(rules, key, value, result);
    } else {
      result.keys.push_back({key, value, {}, is_left_open(value) ? left_open() : why});
    }
  }
}

std::string describe(const Import& import) {
  std::string taken, left;
  for (const ImportedKey& key : import.keys) {
    const std::string theirs = fmt::format("  {}: {}", shown(key.key), shown(key.value));
    std::string ours;
    for (const std::string& name : key.ours)
      ours += fmt::format("{}{} = {}", ours.empty() ? "" : ", ", name, *import.draft.find(name));
    if (!ours.empty()) {
      taken += fmt::format("{} -> {}{}\n", theirs, ours,
                           key.why.empty() ? "" : fmt::format(" ({})", key.why));
    } else {
      left += fmt::format("{}: {}\n", theirs, key.why);
    }
  }
  std::string text;
  if (!taken.empty()) text += "imported:\n" + taken;
  if (!left.empty()) text += "not imported (no counterpart, or not needed):\n" + left;
  return text;
}

}  // namespace coupler::cli
