// Completion: what can stand next on a command line, by the help texts of the commands. Shells ask
// for it by the hidden command `complete`; completion.cc has their scripts. Single-threaded.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cli/commands.h"

namespace coupler::cli {

struct Completions {
  std::vector<std::pair<std::string, std::string>> words;  // and what they mean
  enum class Else { kNothing, kFiles, kFolders } other = Else::kNothing;
};

// words: what stands behind `coupler`, the last one as far as it is written. helps: of the
// commands, where "config recommend" is one of its own; main_help is coupler's own.
Completions complete(const std::vector<std::string>& words, const std::vector<CommandHelp>& helps,
                     const std::string& main_help);

}  // namespace coupler::cli
