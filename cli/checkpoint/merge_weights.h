// `coupler checkpoint convert`, whose command line and work are those of coupler merge-weights.
// Single-threaded.
#pragma once

#include "cli/text/command.h"

namespace coupler::cli {

Command convert_command();  // a subcommand of `coupler checkpoint`

}  // namespace coupler::cli
