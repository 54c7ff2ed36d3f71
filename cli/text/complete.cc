#include "cli/text/complete.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/text/help_text.h"
#include "cli/text/words.h"
#include "config/config.h"
#include "config/schema.h"
#include "plugin/plugin.h"

namespace coupler::cli {

// Completion of -o KEY=VALUE: keys of the schema and of backends, and their values.
// Single-threaded.

namespace {

using Candidates = std::vector<std::pair<std::string, std::string>>;

constexpr std::string_view kUse = "backend.use", kBackend = "backend.";

void add_backends(Candidates& result, const std::string& start, bool bases_only) {
  result.emplace_back(start + "auto", "the best backend here");
  for (const PluginReport& report : list_plugins(BackendConfig())) {
    if (bases_only && report.can(DB_CAP_NEEDS_BASE)) continue;
    result.emplace_back(start + report.name,
                        report.usable ? report.description : "cannot be used here");
  }
}

// The constraint lists the values in prose: "none, cpu or nvme". Words that the key does not accept
// are not values.
std::vector<std::string> values_of(const SchemaKey& key) {
  if (key.type == ValueType::kBoolean) return {"true", "false"};
  std::vector<std::string> values;
  if (key.type != ValueType::kString || key.accepts == nullptr) return values;
  // Parts end at a comma or at "or"; a part of several words is not a value.
  std::string part;
  int words = 0;
  const auto end_part = [&] {
    if (words == 1 && key.accepts(part)) values.push_back(part);
    words = 0;
  };
  std::istringstream text{std::string(key.constraint)};
  for (std::string word; text >> word;) {
    const bool ends = word.ends_with(',');
    if (ends) word.pop_back();
    if (word != "or") {
      part = word;
      ++words;
    }
    if (ends || word == "or") end_part();
  }
  end_part();
  return values;
}

// Adds the options of the table [backend.NAME] that `begun` has reached.
void add_backend_options(Candidates& result, const std::string& begun) {
  const size_t dot = begun.find('.', kBackend.size());
  if (dot == std::string::npos) return;
  const std::string table = begun.substr(0, dot + 1);
  BackendConfig backend;
  backend.use = begun.substr(kBackend.size(), dot - kBackend.size());
  if (backend.use.find('/') != std::string::npos) return;
  try {
    const Plugin plugin = Plugin::load(backend);
    if ((plugin.table().capabilities & DB_CAP_NEEDS_BASE) != 0) {
      if (begun.starts_with(table + "base=")) return add_backends(result, table + "base=", true);
      result.emplace_back(table + "base=", "the transport it runs on");
    }
    uint64_t count = 0;
    const db_option* const* options = plugin.table().default_options(&count);
    for (uint64_t i = 0; i < count; ++i) {
      const std::string name = table + options[i]->key + "=";
      const bool is_boolean = options[i]->type == DB_OPTION_BOOL;
      if (is_boolean && begun.starts_with(name)) {
        result.emplace_back(name + "true", "");
        result.emplace_back(name + "false", "");
      } else if (!begun.starts_with(name)) {
        result.emplace_back(name,
                            options[i]->description == nullptr ? "" : options[i]->description);
      }
    }
  } catch (const Error&) {
    // Nothing to offer. The command itself reports why when it runs.
  }
}

// Candidates for the argument typed as `begun`, each with its meaning; a key ends in "=". A
// backend's keys are offered once "backend.NAME." is typed, unless the backend cannot be loaded.
Candidates complete_setting(const std::string& begun) {
  Candidates result;
  for (const SchemaKey& key : schema()) {
    const std::string name = std::string(key.name) + "=";
    if (!begun.starts_with(name)) {
      result.emplace_back(name, key.doc);
    } else if (key.name == kUse) {
      add_backends(result, name, false);
    } else {
      for (const std::string& value : values_of(key)) result.emplace_back(name + value, "");
    }
  }
  if (begun.starts_with(kBackend)) add_backend_options(result, begun);
  return result;
}

using Words = std::vector<std::string>;

// "none|core|numa"
Words alternatives(std::string_view text) { return split(text, '|'); }

bool is_placeholder(std::string_view value) {
  return !value.empty() && value[0] >= 'A' && value[0] <= 'Z';
}

// What to complete for a placeholder of a help text that stands for a path.
Completions::Else paths_of(const std::string& place) {
  for (const char* folder : {"DIR", "FOLDER"}) {
    if (place == folder) return Completions::Else::kFolders;
  }
  for (const char* file : {"FILE", "PATH", "SOURCE", "TARGET", "CHECKPOINT", "PROGRAM"}) {
    if (place == file) return Completions::Else::kFiles;
  }
  return Completions::Else::kNothing;
}

// The help of one command, and of the commands whose options it also takes.
class Command {
 public:
  Command(const std::string& name, const std::vector<CommandHelp>& helps) {
    add(name, helps);
    if (!is_known()) return;
    Words others;
    for (const HelpForm& form : forms()) {
      if (!form.options_of.empty()) others.push_back(form.options_of);
    }
    for (const std::string& other : others) add(other, helps);
  }

  bool is_known() const { return !texts_.empty(); }
  const std::vector<HelpForm>& forms() const { return texts_[0].forms; }

  std::vector<const HelpWord*> find(std::string_view name) const {
    std::vector<const HelpWord*> found;
    for (const HelpText& text : texts_) {
      const auto more = text.find(name);
      found.insert(found.end(), more.begin(), more.end());
    }
    return found;
  }

  bool takes_value(std::string_view name) const {
    const auto found = find(name);
    return !found.empty() && !found[0]->value.empty();
  }

  // Every option of the help text at index `at`; 0 is the command's own.
  Words all_options(size_t at) const {
    Words names;
    for (const HelpBlock& block : texts_[at].blocks) {
      for (const HelpWord& word : block.words) {
        for (const std::string& name : word.names) {
          if (name[0] == '-') names.push_back(name);
        }
      }
    }
    return names;
  }
  size_t texts() const { return texts_.size(); }

 private:
  void add(std::string_view wanted, const std::vector<CommandHelp>& helps) {
    for (const CommandHelp& help : helps) {
      if (help.name == wanted) texts_.push_back(parse_help(help.text));
    }
  }

  std::vector<HelpText> texts_;
};

// Whether the words that are not options can begin that form.
bool can_be(const HelpForm& form, const Words& given) {
  for (size_t i = 0; i < std::min(given.size(), form.literals.size()); ++i) {
    const Words valid = alternatives(form.literals[i]);
    if (std::find(valid.begin(), valid.end(), given[i]) == valid.end()) return false;
  }
  return true;
}

// Whether they match that form, with no word left over.
bool is_it(const HelpForm& form, const Words& given) {
  return can_be(form, given) && given.size() >= form.literals.size() &&
         given.size() <= form.literals.size() + form.places.size();
}

// The place of that form that the next word fills; "" if there is none.
std::string next_place(const HelpForm& form, const Words& given) {
  if (!can_be(form, given) || given.size() < form.literals.size()) return "";
  const size_t at = given.size() - form.literals.size();
  return at < form.places.size() ? form.places[at] : "";
}

bool is_program_next(const Command& command, const Words& given) {
  return std::any_of(command.forms().begin(), command.forms().end(),
                     [&](const HelpForm& form) { return next_place(form, given) == "PROGRAM"; });
}

void add(Completions& result, const std::string& word, const std::string& doc) {
  const auto is_it = [&](const auto& other) { return other.first == word; };
  if (std::none_of(result.words.begin(), result.words.end(), is_it))
    result.words.emplace_back(word, doc);
}

// before: the part of the word before the value, such as "--bind=".
void add_values(Completions& result, const std::vector<const HelpWord*>& words,
                const std::string& before, const std::string& begun) {
  for (const HelpWord* word : words) {
    if (word->value == "KEY=VALUE") {
      for (const auto& [setting, doc] : complete_setting(begun)) add(result, before + setting, doc);
    } else if (!is_placeholder(word->value)) {
      for (const std::string& value : alternatives(word->value))
        add(result, before + value, word->doc);
    } else {
      result.other = paths_of(word->value);
    }
  }
}

void add_options(Completions& result, const Command& command, const Words& given) {
  Words names = {"--help"};
  for (const HelpForm& form : command.forms()) {
    if (!is_it(form, given)) continue;
    names.insert(names.end(), form.options.begin(), form.options.end());
    for (size_t i = 0; i < command.texts(); ++i) {
      if (i == 0 ? !form.any_option : form.options_of.empty()) continue;
      const Words all = command.all_options(i);
      names.insert(names.end(), all.begin(), all.end());
    }
  }
  for (const std::string& name : names) {
    const auto found = command.find(name);
    add(result, name, found.empty() ? "" : found[0]->doc);
  }
}

void add_places(Completions& result, const Command& command, const Words& given) {
  for (const HelpForm& form : command.forms()) {
    if (!can_be(form, given)) continue;
    if (given.size() < form.literals.size()) {
      for (const std::string& word : alternatives(form.literals[given.size()])) {
        const auto found = command.find(word);
        add(result, word, found.empty() ? "" : found[0]->doc);
      }
      continue;
    }
    const std::string place = next_place(form, given);
    if (place == "--") add(result, place, "the program follows");
    if (result.other == Completions::Else::kNothing) result.other = paths_of(place);
  }
}

void add_commands(Completions& result, const std::string& main_help) {
  for (const HelpBlock& block : parse_help(main_help).blocks) {
    for (const HelpWord& word : block.words) {
      for (const std::string& name : word.names) add(result, name, word.doc);
    }
  }
}

// Completes within one command, whose name is words[0], or words[0] and words[1].
void add_of_command(Completions& result, const Command& command, const Words& words) {
  const std::string& begun = words.back();
  Words given = {words[0]};
  for (size_t i = 1; i + 1 < words.size(); ++i) {
    const std::string& word = words[i];
    const bool is_option = word.size() > 1 && word[0] == '-';
    if (word == "--" || (!is_option && is_program_next(command, given))) {
      result.other = Completions::Else::kFiles;  // the program's own words
      return;
    }
    if (!is_option) {
      given.push_back(word);
    } else if (word.find('=') == std::string::npos && command.takes_value(word) &&
               ++i + 1 == words.size()) {
      return add_values(result, command.find(word), "", begun);
    }
  }
  const size_t equals = begun.starts_with("--") ? begun.find('=') : std::string::npos;
  if (equals != std::string::npos) {
    add_values(result, command.find(begun.substr(0, equals)), begun.substr(0, equals + 1),
               begun.substr(equals + 1));
  } else if (begun.starts_with('-')) {
    add_options(result, command, given);
  } else {
    add_places(result, command, given);
  }
}

}  // namespace

Completions complete(const Words& words, const std::vector<CommandHelp>& helps,
                     const std::string& main_help) {
  Completions result;
  const std::string begun = words.empty() ? "" : words.back();
  if (words.size() < 2 || (words.size() == 2 && words[0] == "help")) {
    add_commands(result, main_help);
  } else {
    const Command narrow(words[0] + " " + words[1], helps);
    const bool is_narrow = words.size() > 2 && narrow.is_known();
    const Command command = is_narrow ? narrow : Command(words[0], helps);
    if (command.is_known()) add_of_command(result, command, words);
  }
  std::erase_if(result.words, [&](const auto& word) {
    const bool is_option = word.first.starts_with('-') && word.first != "--";
    return !word.first.starts_with(begun) || (is_option && begun.empty());
  });
  return result;
}

}  // namespace coupler::cli
