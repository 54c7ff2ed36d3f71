// The checks of `coupler doctor`, one function each. They change nothing on the machine. Each runs
// in a child process that is killed if it takes too long, so none guards against calls that hang.
// root: the prefix of /proc and /sys, "" except in tests.
#pragma once

#include <coupler/error.h>

#include <string>
#include <vector>

#include "config/config.h"

namespace coupler::cli {

// Finding: one result of `coupler doctor`. Values and plain functions, callable from any thread.

enum class Level { kOk, kNote, kWarning, kError };

struct Finding {
  Level level = Level::kOk;
  std::string what;   // what was found
  std::string why{};  // the consequence; "" for kOk
  std::string fix{};  // the command that fixes it, or what to do; "" for kOk
  int exit_code = 1;  // of an error
};
using Findings = std::vector<Finding>;

const char* to_string(Level level);

// An Error as a finding: its hint becomes `fix`; if it has none, `otherwise` does.
Finding finding_of(const Error& error, const std::string& why, const std::string& otherwise);

// The command that installs a Debian package as this user; without apt-get, a sentence instead.
std::string install_command(const std::string& packages);

Findings check_torch(const config::Config& config);
Findings check_backends(const config::Config& config);
Findings check_mpi(const config::Config& config);
Findings check_gpus(const config::Config& config);
Findings check_network(const config::Config& config);
Findings check_processors(const config::Config& config);  // enough for the ranks and their threads
Findings check_memory(const config::Config& config);
Findings check_shared_memory(const config::Config& config);
Findings check_limits(const config::Config& config);
Findings check_folders(const config::Config& config);
Findings check_clock(const std::string& root = "");
Findings check_huge_pages(const std::string& root = "");
Findings check_frequency(const std::string& root = "");

}  // namespace coupler::cli
