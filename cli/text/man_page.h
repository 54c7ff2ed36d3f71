// Man pages in roff, generated from the help texts. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "cli/commands.h"

namespace coupler::cli {

struct ManPage {
  std::string file;  // "coupler-launch.1"
  std::string text;
};

// One for coupler itself and one for each command.
std::vector<ManPage> man_pages(const std::vector<CommandHelp>& helps, const std::string& main_help,
                               const std::string& version);

}  // namespace coupler::cli
