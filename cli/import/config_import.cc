#include "cli/import/config_import.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/text.h"

namespace coupler::cli {

namespace {

// Whether it begins as JSON, possibly after comments.
bool begins_as_json(const std::string& text) {
  size_t at = text.find_first_not_of(" \t\r\n");
  while (at != std::string::npos && text.compare(at, 2, "//") == 0) {
    at = text.find('\n', at);
    if (at != std::string::npos) at = text.find_first_not_of(" \t\r\n", at);
  }
  return at != std::string::npos && (text[at] == '{' || text.compare(at, 2, "/*") == 0);
}

// Accelerate also reads JSON, and refuses files without one of these keys.
bool is_accelerate_json(const std::string& text) {
  bool found = false;
  const auto look = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    if (depth == 1 && event == nlohmann::json::parse_event_t::key)
      found = found || value == "distributed_type" || value == "compute_environment";
    return depth < 2;
  };
  // The importer reports what is wrong with it.
  const auto root = nlohmann::json::parse(text, look, /*allow_exceptions=*/false,
                                          /*ignore_comments=*/false);
  return found && !root.is_discarded();
}

}  // namespace

Import import_text(std::string text, const std::string& where) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
  if (!valid_utf8(text) || text.find('\0') != std::string::npos)
    throw Error(
        ErrorCode::kConfig, fmt::format("{} is not valid UTF-8", where),
        {.subject = where, .hint = "give YAML of `accelerate config`, or DeepSpeed's JSON"});
  const bool is_deepspeed = begins_as_json(text) && !is_accelerate_json(text);
  return is_deepspeed ? import_deepspeed(text, where) : import_accelerate(text, where);
}

void claim(Import& result, ImportedKey& theirs, const std::string& ours) {
  for (ImportedKey& other : result.keys) {
    if (&other == &theirs || std::erase(other.ours, ours) == 0 || !other.ours.empty()) continue;
    other.answer = {Answer::Kind::kReplaced, theirs.key};
  }
  if (std::find(theirs.ours.begin(), theirs.ours.end(), ours) == theirs.ours.end())
    theirs.ours.push_back(ours);
}

void apply_rule(const ImportRule& rule, const std::string& key, const std::string& value,
                Import& result) {
  const auto before = result.draft.entries();
  ImportedKey& theirs = result.keys.emplace_back(ImportedKey{key, value, {}, {}});
  theirs.answer = rule(result.draft, value);
  for (const auto& entry : result.draft.entries()) {
    if (std::find(before.begin(), before.end(), entry) == before.end())
      claim(result, theirs, entry.first);
  }
  if (theirs.ours.empty() && theirs.answer.text().empty()) theirs.answer = unchanged("already set");
}

void apply_rules(const ImportRules& rules, const TableAnswer& answer, const ImportEntries& entries,
                 Import& result) {
  std::vector<std::string> known;
  for (const auto& [name, unused] : rules) known.push_back(name);
  for (const auto& [key, value] : entries) {
    const auto rule = rules.find(key);
    if (rule != rules.end()) {
      apply_rule(rule->second, key, value, result);
      continue;
    }
    std::string why = answer(key.substr(0, key.find('.')));
    if (why.empty()) {
      why = "unknown key" + did_you_mean(key, known);
    } else if (is_left_open(value)) {
      why = left_open().why;
    }
    result.keys.push_back({key, value, {}, {Answer::Kind::kNoEffect, why}});
  }
}

namespace {

// Whether the value, variables of ranks, must not be shown.
bool hides_value(const std::string& key) { return key == "tpu_env" || key.starts_with("tpu_env."); }

}  // namespace

std::string describe(const Import& import) {
  std::string taken, left;
  for (const ImportedKey& key : import.keys) {
    std::string theirs = "  " + for_message(key.key);
    if (!hides_value(key.key)) theirs += ": " + for_message(key.value);
    const std::string why = key.answer.text();
    std::string ours;
    for (const std::string& name : key.ours)
      ours += fmt::format("{}{} = {}", ours.empty() ? "" : ", ", name, *import.draft.find(name));
    if (!ours.empty()) {
      taken +=
          fmt::format("{} -> {}{}\n", theirs, ours, why.empty() ? "" : fmt::format(" ({})", why));
    } else {
      left += fmt::format("{}: {}\n", theirs, why);
    }
  }
  std::string text;
  if (!taken.empty()) text += "imported:\n" + taken;
  if (!left.empty()) text += "not imported (no counterpart, or not needed):\n" + left;
  return text;
}

}  // namespace coupler::cli
