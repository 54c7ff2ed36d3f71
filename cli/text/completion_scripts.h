// The scripts by which shells complete `coupler`. They ask `coupler complete` what can stand next.
// Constant data.
#pragma once

namespace coupler::cli {

extern const char kBashCompletion[], kZshCompletion[], kFishCompletion[];

}  // namespace coupler::cli
