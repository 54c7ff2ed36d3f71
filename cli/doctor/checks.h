// What `coupler doctor` looks at, one function each. They only look: nothing of the machine is
// changed. Each is called in a child process, which is killed when it takes too long, so none
// guards itself against what hangs. root: "" but in tests; stands before /proc and /sys.
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
Findings check_processors(const Config& config);  // enough for the ranks and their threads?
Findings check_memory(const Config& config);
Findings check_shared_memory(const Config& config);
Findings check_limits(const Config& config);
Findings check_folders(const Config& config);
Findings check_leftovers();  // of killed jobs
Findings check_clock(const std::string& root = "");
Findings check_huge_pages(const std::string& root = "");
Findings check_frequency(const std::string& root = "");

}  // namespace coupler::cli
