// Support: what a backend's own communicator reports as supported, for `coupler plugins --matrix`.
// Plain data, and the query, which is single-threaded since it forks.
#pragma once

#include <coupler/distributed_backend.h>

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

#include "config/config.h"

namespace coupler::cli {

struct Support {
  std::string name;
  std::string problem;                // why the query failed; all below is unset then
  std::string base;                   // of a wrapper: the base of its communicator
  db_memory memory = DB_MEMORY_HOST;  // the memory it was asked about
  bool splits = false, aborts = false, streams = false;
  std::map<db_kind, bool> operations;
  std::set<db_dtype> moved;  // by every operation that does not reduce
  // Those that every supported reducing operation takes.
  std::map<db_dtype, std::set<db_reduce>> reductions;
};

// Queries each backend that is found, and the built-in one. `problem` has the reason if one does
// not start here, for lack of a device, a base or a library.
std::vector<Support> ask_for_support(const config::BackendConfig& backend);

// The tables of `coupler plugins --matrix`: operations, types and reductions by backend. Pure
// functions.

std::string matrix_text(const std::vector<Support>& supports);
nlohmann::ordered_json matrix_json(const std::vector<Support>& supports);

}  // namespace coupler::cli
