// `coupler config check`: whether a configuration is right, for this process and for every rank of
// the job that `coupler launch` would start. Single-threaded.
#pragma once

namespace coupler::cli {

// argv[0] is "check"; the result is the exit code. With --json the verdict is an object: "right",
// "file", "processes", "machines", "backend" where it is right, and else "problems".
int run_config_check(int argc, char** argv);

// What it starts as each rank: looks around, compares with the others through the job's store, and
// makes a communicator of the backend. Rank 0 says what came of it.
int run_config_rank(bool as_json);

}  // namespace coupler::cli
