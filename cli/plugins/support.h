// Support: what a backend's own communicator says it can do, for `coupler plugins --matrix`. Plain
// data, and the asking; not for use in threads: it forks.
#pragma once

#include <coupler/distributed_backend.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "config/config.h"

namespace coupler::cli {

struct Support {
  std::string name;
  std::string problem;                // why it could not be asked; all below is empty then
  std::string base;                   // of a wrapper: what its communicator stood on
  db_memory memory = DB_MEMORY_HOST;  // that it was asked about
  bool splits = false, aborts = false, streams = false;
  std::map<db_kind, bool> operations;
  std::set<db_dtype> moved;  // by every operation that moves it
  // Those of all reducing operations that there are.
  std::map<db_dtype, std::set<db_reduce>> reductions;
};

// Each backend that is found, and the built-in one. One that does not come up here (no device, no
// base, no library) has its reason as problem.
std::vector<Support> ask_for_support(const BackendConfig& backend);

// All numbers of the ABI.
std::vector<db_kind> all_kinds();
std::vector<db_dtype> all_dtypes();
std::vector<db_reduce> all_reduces();

}  // namespace coupler::cli
