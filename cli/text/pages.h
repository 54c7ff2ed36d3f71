// What explains a command, derived from its table: the text of --help, and man pages in roff. Pure
// functions.
#pragma once

#include <string>
#include <vector>

#include "cli/text/command.h"

namespace coupler::cli {

// name: "config recommend"; "" for the program. all: also the options that only --help-all shows.
std::string help_text(const Command& command, const std::string& name, bool all = false);

struct ManPage {
  std::string file;  // "coupler-launch.1"
  std::string text;
};
// One for the program and one for each command with a page.
std::vector<ManPage> man_pages(const Command& program, const std::string& version);

}  // namespace coupler::cli
