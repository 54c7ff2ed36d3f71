// `coupler config check`: checks a configuration in this process and on every rank of the job that
// `coupler launch` would start. Single-threaded.
#pragma once

#include <coupler/error.h>

#include <string>

#include "config/config.h"

namespace coupler::cli {

// Configuration problems as sentences for a list. Pure functions.

// "train.toml:3:1: ": where a key was set; "" if it was not set.
std::string source_of(const Config& config, const std::string& key);

// An error's message and hint, in one line.
std::string sentence(const Error& error);

// argv[0] is "check"; returns the exit code. With --json, prints an object: "right", with "file",
// "processes", "machines" and "backend" if the configuration is valid, else with "problems".
int run_config_check(int argc, char** argv);

// Runs as each rank that `check` starts: inspects the rank's view, compares it with the others
// through the job's store, and creates the backend's communicator. Rank 0 prints the result.
int run_config_rank(bool as_json);

}  // namespace coupler::cli
