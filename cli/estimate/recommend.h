// coupler config recommend. Single-threaded.
#pragma once

namespace coupler::cli {

int run_recommend(int argc, char** argv);

}  // namespace coupler::cli
