#include "cli/import/import_rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <variant>

#include "base/text.h"
#include "config/schema.h"

namespace coupler::cli {
namespace {

Answer wrong(const std::string& why) { return {Answer::Kind::kWrong, why}; }

// Sets the key if the schema accepts the value. A backend's own keys are not in the schema; their
// rules check the value.
Answer set_if_right(ConfigDraft& draft, const std::string& key, const config::OptionValue& value) {
  const config::SchemaKey* known = config::find_key(key);
  const config::SettingValue setting =
      std::visit([](const auto& held) { return config::SettingValue(held); }, value);
  if (known != nullptr && known->accepts != nullptr && !known->accepts(setting))
    return wrong(fmt::format("{} must be {}", key, known->constraint));
  draft.set(key, value);
  return {};
}

}  // namespace

std::string Answer::text() const {
  if (kind == Kind::kWrong) return why + ": left at its default";
  if (kind == Kind::kReplaced) return why + " takes precedence";
  return instead.empty() ? why : fmt::format("{}; {}", why, instead);
}

Answer unsupported(const std::string& why, const std::string& instead) {
  return {Answer::Kind::kUnsupported, why, instead};
}

Answer unchanged(const std::string& why) { return {Answer::Kind::kUnchanged, why}; }

Answer left_open() { return unchanged("unspecified there; left at its default"); }

Answer switched_off() { return unchanged("off; nothing to set"); }

Answer refused(const std::string& value, const std::string& what) {
  return wrong(fmt::format("'{}' is not {}", for_message(value), what));
}

bool is_left_open(const std::string& value) {
  const std::string text = lower(value);
  return text.empty() || text == "auto" || text == "null" || text == "none" || text == "~";
}

bool is_off(const std::string& value) {
  const std::string text = lower(value);
  const auto number = to_number<double>(text);  // 0, 0.0
  return text == "false" || text == "no" || text == "off" || (number && *number == 0.0);
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
  return [key](ConfigDraft& draft, const std::string& value) -> Answer {
    if (is_left_open(value)) return left_open();
    return set_if_right(draft, key, value);
  };
}

ImportRule as_word(const std::string& key, const std::vector<std::string>& words) {
  return [key, words](ConfigDraft& draft, const std::string& value) -> Answer {
    const std::string text = lower(value);
    if (std::find(words.begin(), words.end(), text) != words.end())
      return set_if_right(draft, key, text);
    if (is_left_open(value)) return left_open();
    return refused(value, fmt::format("one of {}", fmt::join(words, ", ")));
  };
}

ImportRule as_integer(const std::string& key, int64_t least, int64_t most) {
  return [key, least, most](ConfigDraft& draft, const std::string& value) -> Answer {
    if (is_left_open(value)) return left_open();
    const auto number = integer_of(value);
    if (!number) return refused(value, "a whole number");
    const bool in_schema = config::find_key(key) != nullptr;  // the schema has its own limits
    if (!in_schema && (*number < least || *number > most)) {
      const std::string range =
          most == INT64_MAX ? fmt::format(">= {}", least) : fmt::format("{} to {}", least, most);
      return wrong(fmt::format("{} must be {}", key, range));
    }
    return set_if_right(draft, key, *number);
  };
}

ImportRule as_boolean(const std::string& key) {
  return [key](ConfigDraft& draft, const std::string& value) -> Answer {
    if (is_left_open(value)) return left_open();
    if (!is_on(value) && !is_off(value)) return refused(value, "yes or no");
    return set_if_right(draft, key, is_on(value));
  };
}

ImportRule as_mesh_size(const std::string& key) {
  return [key](ConfigDraft& draft, const std::string& value) -> Answer {
    if (is_left_open(value)) return left_open();
    const auto ranks = integer_of(value);
    if (!ranks || *ranks < 1) return refused(value, "a number of ranks");
    if (*ranks == 1) return unchanged("nothing to set");
    draft.set(key, *ranks);
    return {};
  };
}

ImportRule without(const std::string& why) {
  return [why](ConfigDraft&, const std::string&) -> Answer { return why; };
}

ImportRule without_unless_off(const std::string& why, const std::string& instead) {
  return [why, instead](ConfigDraft&, const std::string& value) -> Answer {
    if (is_left_open(value)) return left_open();
    if (is_off(value)) return switched_off();
    return unsupported(why, instead);
  };
}

ImportRule without_unless(const std::string& usual, const std::string& why,
                          const std::string& instead) {
  return [usual, why, instead](ConfigDraft&, const std::string& value) -> Answer {
    if (lower(value) == usual || is_left_open(value)) return unchanged("nothing to set");
    return unsupported(why, instead);
  };
}

}  // namespace coupler::cli
