#include "cli/import/config_update.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "config/toml.h"

namespace coupler::cli {
namespace {

std::string_view last_part(std::string_view key) { return key.substr(key.rfind('.') + 1); }

// Where a line and column, both from 1, are in the text.
size_t place_in(const std::string& text, const config::TextPosition& position) {
  size_t at = 0;
  for (size_t line = 1; line < position.line; ++line) at = text.find('\n', at) + 1;
  return at + position.column - 1;
}

}  // namespace

const std::vector<RenamedKey>& renamed_keys() {
  static const std::vector<RenamedKey> none;
  return none;
}

UpdatedConfig update_config(const std::string& text, const std::string& name,
                            const std::vector<RenamedKey>& renamed) {
  UpdatedConfig result{text, {}};
  std::vector<config::TomlEntry> entries = config::read_toml(text, name);
  // From the end, so that earlier places stay valid.
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    const auto rename = std::find_if(renamed.begin(), renamed.end(), [&](const RenamedKey& one) {
      return one.before == entry->key;
    });
    if (rename == renamed.end()) continue;
    const std::string place = fmt::format("{}:{}", name, entry->key_position.line);
    const bool twice = std::any_of(entries.begin(), entries.end(),
                                   [&](const auto& other) { return other.key == rename->today; });
    if (twice)
      throw Error(ErrorCode::kConfig,
                  fmt::format("{}: {} is now {}, which the file also has", place, rename->before,
                              rename->today),
                  {.subject = rename->before, .hint = "remove one of the two"});
    const std::string_view before = last_part(rename->before);
    // The key may be dotted: its last part ends before the equals sign.
    const size_t equals = result.text.find('=', place_in(text, entry->key_position));
    const size_t at = result.text.rfind(before, equals);
    result.text.replace(at, before.size(), last_part(rename->today));
    result.changes.insert(result.changes.begin(),
                          fmt::format("{}: {} is now {}", place, rename->before, rename->today));
  }
  return result;
}

}  // namespace coupler::cli
