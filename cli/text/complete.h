// Completion: what can come next on a command line, derived from the commands' help texts. Shell
// scripts (completion.cc) get it from the hidden command `complete`. Single-threaded.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cli/commands.h"

namespace coupler::cli {

struct Completions {
  std::vector<std::pair<std::string, std::string>> words;  // each with its meaning
  enum class Else { kNothing, kFiles, kFolders } other = Else::kNothing;
};

// words: the arguments after `coupler`, the last one as far as it is typed. helps: of the commands;
// "config recommend" counts as a command. main_help: coupler's own.
Completions complete(const std::vector<std::string>& words, const std::vector<CommandHelp>& helps,
                     const std::string& main_help);

}  // namespace coupler::cli
