// The command line of `coupler launch` as its options, for tests of what they mean.
#pragma once

#include <string>
#include <vector>

#include "cli/launch/launch_options.h"

namespace coupler::cli {

// words: without the program, which is ./train. Throws as read_launch_options.
inline LaunchOptions parsed_options(std::vector<std::string> words) {
  words.emplace_back("./train");
  const Command launch = {.name = "launch",
                          .summary = "start",
                          .forms = {"PROGRAM [ARGUMENT]..."},
                          .options = launch_options()};
  return read_launch_options(read_arguments(launch, "launch", words));
}

}  // namespace coupler::cli
