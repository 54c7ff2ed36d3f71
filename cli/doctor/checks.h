// The checks of `coupler doctor`, one function each. They change nothing on the machine. Each runs
// in a child process that is killed if it takes too long, so none guards against calls that hang.
// root: the prefix of /proc and /sys, "" except in tests.
#pragma once

#include <string>

#include "cli/doctor/finding.h"
#include "config/config.h"

namespace coupler::cli {

Findings check_torch(const Config& config);
Findings check_backends(const Config& config);
Findings check_mpi(const Config& config);
Findings check_gpus(const Config& config);
Findings check_network(const Config& config);
Findings check_processors(const Config& config);  // enough for the ranks and their threads
Findings check_memory(const Config& config);
Findings check_shared_memory(const Config& config);
Findings check_limits(const Config& config);
Findings check_folders(const Config& config);
Findings check_leftovers();  // of killed jobs
Findings check_clock(const std::string& root = "");
Findings check_huge_pages(const std::string& root = "");
Findings check_frequency(const std::string& root = "");

}  // namespace coupler::cli
