#include "cli/text/command.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <sstream>

#include "base/text.h"
#include "base/units.h"
#include "cli/text/pages.h"

namespace coupler::cli {
namespace {

constexpr Option kConfigFile = {"--config FILE", "read FILE instead of ./train.toml"};
constexpr Option kSetting = {
    "-o KEY=VALUE", "set one configuration key, e.g. -o backend.timeout=30s; may be repeated"};
constexpr Option kHelp = {"-h, --help", "print this help"};
constexpr Option kHelpAll = {"--help-all", "print this help, with the options of other launchers"};

bool is_long(std::string_view name) { return name.starts_with("--"); }
bool is_option(std::string_view word) { return word.size() > 1 && word[0] == '-'; }

// The blank before the value; names are separated by a comma and a blank.
size_t end_of_names(std::string_view spec) {
  size_t blank = spec.find(' ');
  while (blank != std::string_view::npos && spec[blank - 1] == ',')
    blank = spec.find(' ', blank + 1);
  return blank;
}

std::string with_dashes(std::string_view name) {
  std::string result(name);
  if (is_long(name)) std::replace(result.begin(), result.end(), '_', '-');
  return result;
}

// A word split into an option's name and its value, if that is attached: "--config=F", "-n4".
struct Word {
  std::string name;
  std::optional<std::string> value;
};

Word split_word(const std::string& word) {
  const size_t end = is_long(word) ? word.find('=') : word.size() > 2 ? 2 : std::string::npos;
  if (end == std::string::npos) return {word, {}};
  return {word.substr(0, end), word.substr(end + (is_long(word) ? 1 : 0))};
}

const Option* find_option(const std::vector<Option>& options, std::string_view name) {
  const auto found = std::find_if(options.begin(), options.end(),
                                  [&](const Option& option) { return option.is(name); });
  return found == options.end() ? nullptr : &*found;
}

std::vector<Option> options_handed_on(const Command& command) {
  return command.hands_on == nullptr ? std::vector<Option>{} : command.hands_on().all_options();
}

class Reader {
 public:
  Reader(const Command& command, const std::string& name, const std::vector<std::string>& words)
      : command_(command),
        words_(words),
        own_(command.all_options()),
        other_(options_handed_on(command)),
        forms_(forms_of(command)),
        end_(count_own()) {
    arguments_.command = name;
  }

  bool asks_for(const Option& help) const {
    return find_option(own_, help.names().back()) != nullptr &&
           std::any_of(words_.begin(), words_.begin() + static_cast<ptrdiff_t>(end_),
                       [&](const std::string& word) { return help.is(word); });
  }

  Arguments read() {
    std::vector<std::string> words(words_.begin(), words_.begin() + static_cast<ptrdiff_t>(end_));
    if (command_.config) take_config(words);
    for (size_t i = 0; i < words.size(); ++i) i += take(words, i);
    const bool dashes = end_ < words_.size() && words_[end_] == "--";
    arguments_.program.assign(words_.begin() + static_cast<ptrdiff_t>(end_ + (dashes ? 1 : 0)),
                              words_.end());
    check_places(dashes);
    for (const Option& option : own_) {
      if (option.required && !arguments_.has(option.names()[0]))
        arguments_.refuse(fmt::format("{} is missing", option.spec), option.names()[0]);
    }
    return std::move(arguments_);
  }

 private:
  const Option* find(std::string_view name) const {
    const Option* option = find_option(own_, name);
    return option == nullptr ? find_option(other_, name) : option;
  }

  // Whether the word at `i` is an option whose value is the next word.
  bool takes_next(const std::vector<std::string>& words, size_t i) const {
    const Word word = split_word(words[i]);
    const Option* option = find(word.name);
    return option != nullptr && !option->value().empty() && !word.value && i + 1 < words.size() &&
           !is_long(words[i + 1]);
  }

  bool takes_program(Form::Program place) const {
    return std::any_of(forms_.begin(), forms_.end(),
                       [&](const Form& form) { return form.program == place; });
  }

  // The number of words before "--" or the program.
  size_t count_own() const {
    const bool program_next = takes_program(Form::Program::kNext);
    for (size_t i = 0; i < words_.size(); ++i) {
      if (words_[i] == "--" || (program_next && !is_option(words_[i]))) return i;
      if (takes_next(words_, i)) ++i;
    }
    return words_.size();
  }

  void take_config(std::vector<std::string>& words) {
    std::vector<char*> argv = {arguments_.command.data()};
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    int count = static_cast<int>(argv.size()) - 1;
    arguments_.config = config::take_config_arguments(count, argv.data());
    words = std::vector<std::string>(argv.begin() + 1, argv.begin() + count);
  }

  // Takes the word at `i`; returns how many of the following ones belong to it.
  size_t take(const std::vector<std::string>& words, size_t i) {
    if (!is_option(words[i])) {
      arguments_.places.push_back(words[i]);
      return 0;
    }
    Word word = split_word(words[i]);
    const Option* option = find(word.name);
    if (option == nullptr) refuse_unknown(is_long(word.name) ? word.name : words[i]);
    if (option->value().empty() && word.value)
      arguments_.refuse(
          fmt::format("{} takes no value, but '{}' was given", word.name, *word.value), word.name);
    const bool next = takes_next(words, i);
    if (!option->value().empty() && !word.value && !next)
      arguments_.refuse(fmt::format("{} needs a value", word.name), word.name);
    if (find_option(own_, word.name) != nullptr) {
      const std::string value = next ? words[i + 1] : word.value.value_or("");
      arguments_.given.push_back({*option, value, word.name});
    } else {
      arguments_.handed_on.push_back(words[i]);
      if (next) arguments_.handed_on.push_back(words[i + 1]);
    }
    return next ? 1 : 0;
  }

  [[noreturn]] void refuse_unknown(const std::string& name) const {
    std::vector<std::string> known;
    for (const auto* options : {&own_, &other_}) {
      for (const Option& option : *options) {
        for (const std::string& other : option.names()) known.push_back(with_dashes(other));
      }
    }
    arguments_.refuse(
        fmt::format("unknown argument '{}'{}", name, did_you_mean(with_dashes(name), known)), name,
        hint());
  }

  void check_places(bool dashes) const {
    const auto found = std::find_if(forms_.begin(), forms_.end(), [&](const Form& form) {
      return (form.program == Form::Program::kAfterDashes) == dashes;
    });
    const Form& form = found == forms_.end() ? forms_[0] : *found;
    const auto& places = arguments_.places;
    const size_t most = form.required.size() + form.optional.size();
    const bool no_program = form.program == Form::Program::kNone;
    if (places.size() > most || (no_program && !arguments_.program.empty())) {
      const std::string& word = places.size() > most ? places[most] : arguments_.program[0];
      arguments_.refuse(fmt::format("'{}' is one argument too many", word), word, hint());
    }
    std::vector<std::string> missing(
        form.required.begin() +
            static_cast<ptrdiff_t>(std::min(places.size(), form.required.size())),
        form.required.end());
    if (!missing.empty())
      arguments_.refuse(
          fmt::format("{} {} missing{}", fmt::join(missing, " and "),
                      missing.size() == 1 ? "is" : "are",
                      places.empty() ? "" : fmt::format(" after '{}'", places.back())),
          missing[0]);
    if (!no_program && arguments_.program.empty())
      arguments_.refuse("no program was given", "PROGRAM", hint());
  }

  // For words that may be a program's.
  std::string hint() const {
    if (!takes_program(Form::Program::kAfterDashes)) return "";
    return fmt::format(
        "a program comes after --: coupler {0} -- ./program; see 'coupler {0} --help'",
        arguments_.command);
  }

  const Command& command_;
  const std::vector<std::string>& words_;
  const std::vector<Option> own_, other_;
  const std::vector<Form> forms_;
  const size_t end_;  // of the command's own words
  Arguments arguments_;
};

[[noreturn]] void refuse_subcommand(const Command& command, const std::string& name,
                                    const std::string& word) {
  std::vector<std::string> known = {"--help"}, valid;
  for (const Command& other : command.subcommands) {
    if (!other.summary.empty()) valid.emplace_back(other.name);
  }
  known.insert(known.end(), valid.begin(), valid.end());
  const std::string nearest = did_you_mean(word, known);
  if (name.empty())
    throw Error(ErrorCode::kUsage, fmt::format("unknown command '{}'{}", word, nearest),
                {.subject = word, .hint = "'coupler --help' lists the commands"});
  throw Error(ErrorCode::kUsage,
              fmt::format("{}: unknown subcommand '{}'{}; valid: {}", name, word, nearest,
                          fmt::join(valid, ", ")),
              {.subject = word, .hint = fmt::format("see 'coupler {} --help'", name)});
}

}  // namespace

std::vector<std::string> Option::names() const {
  std::vector<std::string> result;
  std::string_view rest = spec.substr(0, end_of_names(spec));
  for (size_t comma; (comma = rest.find(", ")) != std::string_view::npos;
       rest.remove_prefix(comma + 2))
    result.emplace_back(rest.substr(0, comma));
  result.emplace_back(rest);
  return result;
}

std::string Option::value() const {
  const size_t end = end_of_names(spec);
  return end == std::string_view::npos ? "" : std::string(spec.substr(end + 1));
}

bool Option::is(std::string_view name) const {
  const std::vector<std::string> all = names();
  return std::any_of(all.begin(), all.end(),
                     [&](const std::string& own) { return with_dashes(own) == with_dashes(name); });
}

std::vector<Option> Command::all_options() const {
  std::vector<Option> all = options;
  if (config) all.insert(all.end(), {kConfigFile, kSetting});
  if (std::any_of(options.begin(), options.end(), [](const Option& one) { return one.more; }))
    all.push_back(kHelpAll);
  all.push_back(kHelp);
  return all;
}

std::vector<Form> forms_of(const Command& command) {
  std::vector<Form> forms;
  for (const std::string_view text : command.forms) {
    Form form;
    std::istringstream words{std::string(text)};
    bool dashes = false;
    for (std::string word; words >> word;) {
      if (word == "|") {
        words >> word;  // another name for the place before it
      } else if (word == "--") {
        dashes = true;
      } else if (word == "PROGRAM") {
        form.program = dashes ? Form::Program::kAfterDashes : Form::Program::kNext;
        break;
      } else {
        auto& places = word[0] == '[' ? form.optional : form.required;
        std::erase_if(word, [](char c) { return c == '[' || c == ']'; });
        places.push_back(word);
      }
    }
    forms.push_back(form);
  }
  if (forms.empty()) forms.emplace_back();
  return forms;
}

bool Arguments::has(std::string_view option) const {
  return std::any_of(given.begin(), given.end(),
                     [&](const Given& one) { return one.option.is(option); });
}

std::string Arguments::value(std::string_view option, const std::string& otherwise) const {
  const Given* found = nullptr;
  for (const Given& one : given) {
    if (!one.option.is(option)) continue;
    if (found != nullptr && found->value != one.value)
      refuse(
          fmt::format("{} is given twice: '{}' and '{}'", one.as_written, found->value, one.value),
          one.as_written);
    found = &one;
  }
  return found == nullptr ? otherwise : found->value;
}

std::string Arguments::place(size_t index, const std::string& otherwise) const {
  return index < places.size() ? places[index] : otherwise;
}

uint64_t Arguments::byte_size(std::string_view option) const {
  try {
    return parse_byte_size(value(option), std::string(option));
  } catch (const Error& error) {
    throw Error(ErrorCode::kUsage, fmt::format("{}: {}", command, error.what()),
                {.subject = std::string(option)});
  }
}

void Arguments::refuse(const std::string& problem, const std::string& subject,
                       const std::string& hint) const {
  throw Error(ErrorCode::kUsage, fmt::format("{}: {}", command, problem),
              {.subject = subject,
               .hint = hint.empty() ? fmt::format("'coupler {} --help' lists the options", command)
                                    : hint});
}

Arguments read_arguments(const Command& command, const std::string& name,
                         const std::vector<std::string>& words) {
  return Reader(command, name, words).read();
}

int run_command(const Command& root, std::string name, std::vector<std::string> words) {
  const Command* command = &root;
  const Command* page = &root;
  std::string page_name = name;
  while (!words.empty()) {
    const auto& known = command->subcommands;
    const auto found = std::find_if(known.begin(), known.end(),
                                    [&](const Command& one) { return one.name == words[0]; });
    if (found == known.end()) break;
    command = &*found;
    name += (name.empty() ? "" : " ") + words[0];
    words.erase(words.begin());
    if (!command->has_page()) continue;
    page = command;
    page_name = name;
  }
  if (command->summary.empty() && command->run != nullptr)
    return command->run({.command = name, .program = std::move(words)});
  if (!command->subcommands.empty() && !words.empty() && !is_option(words[0]))
    refuse_subcommand(*command, name, words[0]);
  Reader reader(*command, name, words);
  const bool all = reader.asks_for(kHelpAll);
  if (all || reader.asks_for(kHelp)) {
    std::fputs(help_text(*page, page_name, all).c_str(), stdout);
    return 0;
  }
  const std::vector<Form> forms = forms_of(*command);
  const bool needs_words =
      command->run == nullptr || std::all_of(forms.begin(), forms.end(), [](const Form& form) {
        return !form.required.empty() || form.program != Form::Program::kNone;
      });
  if (words.empty() && needs_words && command == page) {
    std::fputs(help_text(*page, page_name).c_str(), stderr);
    return 2;
  }
  if (command->run == nullptr) refuse_subcommand(*command, name, words[0]);
  return command->run(reader.read());
}

}  // namespace coupler::cli
