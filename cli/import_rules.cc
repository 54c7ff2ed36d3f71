#include "import_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>

#include "config/nearest.h"

namespace coupler::cli {
namespace {

bool is_left_open(const std::string& value) {
  const std::string text = lower(value);
  return text.empty() || text == "auto" || text == "null" || text == "none" || text == "~";
}

std::string refused(const std::string& value, const char* what) {
  return fmt::format("'{}' is no {}: left at its default", value, what);
}

}  // namespace

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

bool is_off(const std::string& value) {
  const std::string text = lower(value);
  return is_left_open(text) || text == "false" || text == "no" || text == "off" || text == "0";
}

bool is_on(const std::string& value) {
  const std::string text = lower(value);
  return text == "true" || text == "yes" || text == "on" || text == "1";
}

std::optional<long> integer_of(const std::string& value) {
  char* end = nullptr;
  errno = 0;
  // DeepSpeed's JSON has 5e8.
  const double number = std::strtod(value.c_str(), &end);
  if (value.empty() || *end != '\0' || errno != 0 ||
      number != static_cast<double>(static_cast<long>(number)))
    return std::nullopt;
  return static_cast<long>(number);
}

ImportRule as_text(const std::string& key) {
  return [key](ConfigDraft& draft, const std::string& value) -> std::string {
    if (is_left_open(value)) return "left open there, too";
    draft.set(key, value);
    return {};
  };
}

ImportRule as_integer(const std::string& key) {
  return [key](ConfigDraft& draft, const std::string& value) -> std::string {
    if (is_left_open(value)) return "left open there, too";
    const auto number = integer_of(value);
    if (!number) return refused(value, "whole number");
    draft.set(key, static_cast<int64_t>(*number));
    return {};
  };
}

ImportRule as_number(const std::string& key) {
  return [key](ConfigDraft& draft, const std::string& value) -> std::string {
    if (is_left_open(value)) return "left open there, too";
    char* end = nullptr;
    const double number = std::strtod(value.c_str(), &end);
    if (*end != '\0') return refused(value, "number");
    draft.set(key, number);
    return {};
  };
}

ImportRule as_boolean(const std::string& key) {
  return [key](ConfigDraft& draft, const std::string& value) -> std::string {
    if (is_left_open(value)) return "left open there, too";
    if (!is_on(value) && !is_off(value)) return refused(value, "yes or no");
    draft.set(key, is_on(value));
    return {};
  };
}

ImportRule without(const std::string& why) {
  return [why](ConfigDraft&, const std::string&) { return why; };
}

ImportRule without_unless_off(const std::string& why) {
  return [why](ConfigDraft&, const std::string& value) {
    return is_off(value) ? "off there; nothing to set" : why;
  };
}

void apply_rule(const ImportRules& rules, const std::string& key, const std::string& value,
                Import& result) {
  ImportedKey imported{key, value, {}, {}};
  const auto rule = rules.find(key);
  if (rule == rules.end()) {
    std::vector<std::string> known;
    for (const auto& [name, unused] : rules) known.push_back(name);
    const std::string nearest = nearest_name(key, known);
    imported.why = nearest.empty() ? "not a key of theirs that is known"
                                   : fmt::format("not known; did you mean '{}'?", nearest);
  } else {
    const auto before = result.draft.entries();
    imported.why = rule->second(result.draft, value);
    for (const auto& entry : result.draft.entries()) {
      if (std::find(before.begin(), before.end(), entry) != before.end()) continue;
      imported.ours +=
          fmt::format("{}{} = {}", imported.ours.empty() ? "" : ", ", entry.first, entry.second);
    }
    if (imported.ours.empty() && imported.why.empty()) imported.why = "set already";
  }
  result.keys.push_back(std::move(imported));
}

std::string describe(const Import& import) {
  std::string taken, left;
  for (const ImportedKey& key : import.keys) {
    if (!key.ours.empty()) {
      taken += fmt::format("  {}: {} -> {}{}\n", key.key, key.value, key.ours,
                           key.why.empty() ? "" : fmt::format(" ({})", key.why));
    } else {
      left += fmt::format("  {}: {}: {}\n", key.key, key.value, key.why);
    }
  }
  std::string text;
  if (!taken.empty()) text += "taken over:\n" + taken;
  if (!left.empty()) text += "without a counterpart, or not needed:\n" + left;
  return text;
}

}  // namespace coupler::cli
