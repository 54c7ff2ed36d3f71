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
#include "cli/text/completion_scripts.h"
#include "cli/text/man_page.h"

namespace coupler::cli {

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
