// coupler completion: shell scripts and man pages. The scripts run coupler complete, which prints
// what can come next on a command line.
#include <coupler/error.h>
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "base/durable_file.h"
#include "cli/commands.h"
#include "cli/text/complete.h"
#include "cli/text/man_page.h"

namespace coupler::cli {

// Shell completion scripts for `coupler`. They run `coupler complete` to learn what can come next.
// Constant data.

namespace {

extern const char kBashCompletion[], kZshCompletion[], kFishCompletion[];

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

}  // namespace

const char kCompletionHelp[] = R"help(usage: coupler completion bash|zsh|fish
       coupler completion man FOLDER

Prints a shell completion script for coupler: commands, options, keys and values of -o, backends
and files. An installed Coupler already has the script where the shell looks for it.

  bash  for bash 4.4 or newer: put eval "$(coupler completion bash)" into ~/.bashrc
  zsh   for zsh: save as _coupler in a folder of $fpath
  fish  for fish: save as coupler.fish in ~/.config/fish/completions
  man   write the man pages, coupler.1 and one for each command, to FOLDER

  coupler completion bash > coupler-completion.bash
)help";

namespace {

[[noreturn]] void refuse(const std::string& subject, const std::string& problem) {
  throw Error(ErrorCode::kUsage, "completion: " + problem,
              {.subject = subject, .hint = "'coupler completion --help' explains the command"});
}

void write_man_pages(const std::string& folder) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed)
    throw Error(ErrorCode::kIo, fmt::format("cannot make {}: {}", folder, failed.message()),
                {.subject = folder, .hint = "name a folder that you may write to"});
  for (const ManPage& page : man_pages(command_helps(), main_help(), COUPLER_VERSION))
    replace_file(folder + "/" + page.file, page.text);
}

}  // namespace

int run_completion(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  for (const std::string& word : words) {
    if (word != "--help" && word != "-h") continue;
    std::fputs(kCompletionHelp, stdout);
    return 0;
  }
  if (words.empty()) refuse("", "give the name of a shell: bash, zsh or fish");
  const size_t most = words[0] == "man" ? 2 : 1;
  if (words.size() > most)
    refuse(words[most], fmt::format("'{}' is one argument too many", words[most]));
  if (words[0] == "man") {
    if (words.size() < 2) refuse("FOLDER", "man needs the folder for the pages");
    write_man_pages(words[1]);
    return 0;
  }
  for (const auto& [shell, script] :
       {std::pair{"bash", kBashCompletion}, {"zsh", kZshCompletion}, {"fish", kFishCompletion}}) {
    if (words[0] != shell) continue;
    std::fputs(script, stdout);
    return 0;
  }
  refuse(words[0], fmt::format("'{}' is not bash, zsh, fish or man", words[0]));
}

// Prints one word per line, followed by a tab and its meaning. If a path may also come next, the
// last line is ":files" or ":folders".
int run_complete(int argc, char** argv) {
  const Completions next = complete({argv + 1, argv + argc}, command_helps(), main_help());
  for (const auto& [word, doc] : next.words) std::printf("%s\t%s\n", word.c_str(), doc.c_str());
  if (next.other == Completions::Else::kFiles) std::puts(":files");
  if (next.other == Completions::Else::kFolders) std::puts(":folders");
  return 0;
}

}  // namespace coupler::cli
