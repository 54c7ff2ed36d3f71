// coupler completion: shell scripts and man pages. The scripts run the hidden command `complete`,
// which prints what can come next on a command line, derived from the commands' tables.
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/durable_file.h"
#include "base/text.h"
#include "cli/text/command.h"
#include "cli/text/pages.h"
#include "config/config.h"
#include "config/schema.h"
#include "plugin/bases.h"
#include "plugin/plugin.h"

namespace coupler::cli {

const Command& program();  // main.cc

namespace {

// Completion of -o KEY=VALUE: keys of the schema and of backends, and their values.

using Candidates = std::vector<std::pair<std::string, std::string>>;

constexpr std::string_view kUse = "backend.use", kBackend = "backend.";

void add_backends(Candidates& result, const std::string& start, bool bases_only) {
  result.emplace_back(start + "auto", "the best backend here");
  for (const plugin::PluginReport& report : plugin::list_plugins(config::BackendConfig())) {
    if (bases_only && report.can(DB_CAP_NEEDS_BASE)) continue;
    result.emplace_back(start + report.name,
                        report.usable ? report.description : "cannot be used here");
  }
}

// The constraint lists the values in prose: "none, cpu or nvme". Words that the key does not accept
// are not values.
std::vector<std::string> values_of(const config::SchemaKey& key) {
  if (key.type == config::ValueType::kBoolean) return {"true", "false"};
  if (key.type == config::ValueType::kMeshSize) return {"rest"};
  std::vector<std::string> values;
  if (key.type != config::ValueType::kString || key.accepts == nullptr) return values;
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
  config::BackendConfig backend;
  backend.use = begun.substr(kBackend.size(), dot - kBackend.size());
  if (backend.use.find('/') != std::string::npos) return;
  try {
    const plugin::Plugin plugin = plugin::Plugin::load(backend);
    for (const plugin::WantedBase& base : plugin::wanted_bases(plugin.table())) {
      const std::string name = table + base.option + "=";
      if (begun.starts_with(name)) return add_backends(result, name, true);
      result.emplace_back(name,
                          base.option == "base" ? "the transport it runs on" : base.description);
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
  for (const config::SchemaKey& key : config::schema()) {
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

// What can come next.
struct Completions {
  Candidates words;  // each with its meaning
  std::string path;  // ":files" or ":folders" if a path may also come

  void add(const std::string& word, std::string_view doc) {
    if (std::none_of(words.begin(), words.end(),
                     [&](const auto& one) { return one.first == word; }))
      words.emplace_back(word, doc);
  }
  // A placeholder that stands for a path.
  void add_path(const std::string& place) {
    constexpr std::array kFolders = {"DIR", "FOLDER"};
    constexpr std::array kFiles = {"FILE", "PATH", "SOURCE", "TARGET", "PROGRAM"};
    if (!path.empty()) return;
    if (std::find(kFolders.begin(), kFolders.end(), place) != kFolders.end()) path = ":folders";
    if (std::find(kFiles.begin(), kFiles.end(), place) != kFiles.end()) path = ":files";
  }
};

using Words = std::vector<std::string>;

// before: the part of the word before the value, such as "--bind=".
void add_values(Completions& result, const std::vector<Option>& options, const std::string& name,
                const std::string& before, const std::string& begun) {
  for (const Option& option : options) {
    const std::string value = option.value();
    if (!option.is(name)) continue;
    if (value == "KEY=VALUE") {
      for (const auto& [setting, doc] : complete_setting(begun)) result.add(before + setting, doc);
    } else if (!value.empty() && value[0] >= 'A' && value[0] <= 'Z') {
      result.add_path(value);
    } else {
      for (const std::string& one : split(value, '|')) result.add(before + one, option.doc);
    }
  }
}

void add_places(Completions& result, const Command& command, size_t given) {
  if (given == 0) {
    for (const Command& sub : command.subcommands) {
      if (!sub.summary.empty()) result.add(std::string(sub.name), sub.summary);
    }
  }
  for (const Form& form : forms_of(command)) {
    std::vector<std::string> places = form.required;
    places.insert(places.end(), form.optional.begin(), form.optional.end());
    if (given < places.size()) {
      result.add_path(places[given]);
    } else if (given == places.size() && form.program == Form::Program::kNext) {
      result.add_path("PROGRAM");
    } else if (given == places.size() && form.program == Form::Program::kAfterDashes) {
      result.add("--", "the program follows");
    }
  }
}

// words: the arguments after `coupler`, the last one as far as it is typed.
Completions complete(Words words) {
  if (words.empty()) words.emplace_back();
  if (words[0] == "help" && words.size() == 2) words.erase(words.begin());
  Completions result;
  const Command* command = &program();
  std::vector<Option> options = command->all_options();
  size_t given = 0;  // places
  const std::string& begun = words.back();
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    const std::string& word = words[i];
    if (word.size() > 1 && word[0] == '-' && word != "--") {
      const auto option = std::find_if(options.begin(), options.end(),
                                       [&](const Option& one) { return one.is(word); });
      if (option == options.end() || option->value().empty()) continue;
      if (++i + 1 < words.size()) continue;
      add_values(result, options, word, "", begun);
      return result;
    }
    const auto sub =
        std::find_if(command->subcommands.begin(), command->subcommands.end(),
                     [&](const Command& one) { return one.name == word && !one.summary.empty(); });
    if (sub != command->subcommands.end() && given == 0) {
      command = &*sub;
      options = command->all_options();
      if (command->hands_on == nullptr) continue;
      const std::vector<Option> more = command->hands_on().all_options();
      options.insert(options.end(), more.begin(), more.end());
      continue;
    }
    const std::vector<Form> forms = forms_of(*command);
    if (word == "--" || forms[0].program == Form::Program::kNext) {
      result.path = ":files";  // the program's own words
      return result;
    }
    if (!command->subcommands.empty()) return result;  // an unknown command
    ++given;
  }
  const size_t equals = begun.starts_with("--") ? begun.find('=') : std::string::npos;
  if (equals != std::string::npos) {
    add_values(result, options, begun.substr(0, equals), begun.substr(0, equals + 1),
               begun.substr(equals + 1));
    return result;
  }
  add_places(result, *command, given);
  for (const Option& option : options) {
    if (option.doc.empty() || option.more) continue;
    for (const std::string& name : option.names()) result.add(name, option.doc);
  }
  if (begun.starts_with('-')) result.path.clear();
  return result;
}

const char kBashCompletion[] =
    R"script(# Completion of coupler for bash, as `coupler completion bash` prints it.
_coupler() {
  local line=${COMP_LINE:0:COMP_POINT} program current kept='' shown='' word
  local -a words
  # COMP_WORDS is also split at =. A backslash keeps a blank in its word.
  # shellcheck disable=SC2162
  read -a words <<< "$line"
  [[ $line == *[[:blank:]] && $line != *\\[[:blank:]] ]] && words+=('')
  program=${words[0]/#\~/$HOME}
  current=${words[${#words[@]} - 1]}
  [[ $current == *=* ]] && kept=${current%"${current##*=}"}
  # If bash does not split words at =, it replaces the whole word.
  [[ $COMP_WORDBREAKS == *=* ]] || shown=$kept
  COMPREPLY=()
  while IFS=$'\t' read -r word _; do
    case $word in
      :files | :folders)
        compopt -o filenames 2> /dev/null
        while read -r word; do
          COMPREPLY+=("$shown$word")
        done < <(if [[ $word == :files ]]; then compgen -f -- "${current#"$kept"}"; else compgen -d -- "${current#"$kept"}"; fi)
        ;;
      *=)
        compopt -o nospace 2> /dev/null
        COMPREPLY+=("$shown${word#"$kept"}")
        ;;
      *) COMPREPLY+=("$shown${word#"$kept"}") ;;
    esac
  done < <("$program" complete "${words[@]:1}" 2> /dev/null)
}
complete -F _coupler coupler
)script";

const char kZshCompletion[] = R"script(#compdef coupler
# Completion of coupler for zsh, as `coupler completion zsh` prints it.
_coupler() {
  local line word other='' kept=''
  local -a given full keys
  given=("${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}")
  for line in "${(@f)$(${~words[1]} complete "${given[@]}" 2> /dev/null)}"; do
    word=${line%%$'\t'*}
    case $word in
      :files | :folders) other=$word ;;
      '') ;;
      *=) keys+=("${word//:/\\:}:${line#*$'\t'}") ;;
      *) full+=("${word//:/\\:}:${line#*$'\t'}") ;;
    esac
  done
  if [[ $PREFIX == *=* ]]; then
    kept=${PREFIX%"${PREFIX##*=}"}
    compset -P '*='
    keys=("${(@)keys#$kept}")
    full=("${(@)full#$kept}")
  fi
  local found=1
  (( $#full )) && _describe -t words 'coupler' full && found=0
  (( $#keys )) && _describe -t keys 'key' keys -S '' && found=0
  [[ $other == :files ]] && _files && found=0
  [[ $other == :folders ]] && _files -/ && found=0
  return found
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
  _coupler "$@"
else
  compdef _coupler coupler
fi
)script";

const char kFishCompletion[] =
    R"script(# Completion of coupler for fish, as `coupler completion fish` prints it.
function __coupler_complete
    set -l given (commandline -opc)
    set -l current (commandline -ct)
    set -l kept (string match -r -- '^.*=' "$current"; or echo)
    for line in ($given[1] complete $given[2..-1] "$current" 2>/dev/null)
        switch $line
            case ':files'
                printf '%s\n' $kept(__fish_complete_path (string replace -- "$kept" '' "$current"))
            case ':folders'
                printf '%s\n' $kept(__fish_complete_directories (string replace -- "$kept" '' "$current") '')
            case '*'
                printf '%s\n' $line
        end
    end
end
complete -c coupler -f -a '(__coupler_complete)'
)script";

int write_man_pages(const Arguments& arguments) {
  const std::string folder = arguments.place(0);
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed)
    throw Error(ErrorCode::kIo, fmt::format("cannot make {}: {}", folder, failed.message()),
                {.subject = folder, .hint = "name a folder that you may write to"});
  for (const ManPage& page : man_pages(program(), COUPLER_VERSION))
    replace_file(folder + "/" + page.file, page.text);
  return 0;
}

template <const char* kScript>
int print_script(const Arguments&) {
  std::fputs(kScript, stdout);
  return 0;
}

// Prints one word per line, followed by a tab and its meaning. If a path may also come next, the
// last line is ":files" or ":folders".
int run_complete(const Arguments& arguments) {
  const Completions next = complete(arguments.program);
  const std::string begun = arguments.program.empty() ? "" : arguments.program.back();
  for (const auto& [word, doc] : next.words) {
    const bool is_option = word.starts_with('-') && word != "--";
    if (word.starts_with(begun) && !(is_option && begun.empty()))
      std::printf("%s\t%s\n", word.c_str(), doc.c_str());
  }
  if (!next.path.empty()) std::puts(next.path.c_str());
  return 0;
}

}  // namespace

Command complete_command() { return {.name = "complete", .summary = "", .run = run_complete}; }

Command completion_command() {
  return {
      .name = "completion",
      .summary = "print a shell completion script or write man pages",
      .subcommands = {{.name = "bash",
                       .summary =
                           "for bash 4.4 or newer: put eval \"$(coupler completion bash)\" into "
                           "~/.bashrc",
                       .run = print_script<kBashCompletion>},
                      {.name = "zsh",
                       .summary = "for zsh: save as _coupler in a folder of $fpath",
                       .run = print_script<kZshCompletion>},
                      {.name = "fish",
                       .summary = "for fish: save as coupler.fish in ~/.config/fish/completions",
                       .run = print_script<kFishCompletion>},
                      {.name = "man",
                       .summary =
                           "write the man pages, coupler.1 and one for each command, to FOLDER",
                       .forms = {"FOLDER"},
                       .run = write_man_pages}},
      .description = {"Prints a shell completion script for coupler: commands, options, keys and "
                      "values of -o, backends and files. An installed Coupler already has the "
                      "script where the shell looks for it."},
      .examples = {"coupler completion bash > coupler-completion.bash"}};
}

}  // namespace coupler::cli
