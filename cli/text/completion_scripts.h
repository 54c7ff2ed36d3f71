// Shell completion scripts for `coupler`. They run `coupler complete` to learn what can come next.
// Constant data.
#pragma once

namespace coupler::cli {

extern const char kBashCompletion[], kZshCompletion[], kFishCompletion[];

}  // namespace coupler::cli
