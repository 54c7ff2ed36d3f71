// Man pages of the help texts, in roff. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "cli/commands.h"

namespace coupler::cli {

struct ManPage {
  std::string file;  // "coupler-launch.1"
  std::string text;
};

// One of coupler itself, and one a command.
std::vector<ManPage> man_pages(const std::vector<CommandHelp>& helps, const std::string& main_help,
                               const std::string& version);

}  // namespace coupler::cli
