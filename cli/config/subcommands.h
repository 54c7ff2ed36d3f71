// The subcommands of `coupler config` that have sources of their own. Single-threaded.
#pragma once

#include "cli/text/command.h"

namespace coupler::cli {

Command config_keys_command();
Command config_check_command();
Command config_rank_command();  // hidden: a rank that `check` starts

}  // namespace coupler::cli
