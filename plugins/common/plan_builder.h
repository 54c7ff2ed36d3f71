// The memory of a db_plan: make_plan turns units into one, release_plan frees it. [any-thread]
#pragma once

#include <coupler/sharding.h>

#include <string>
#include <vector>

namespace db {

struct PlannedUnit {
  std::string name;
  std::vector<uint64_t> parameters;           // indices
  std::vector<std::vector<uint64_t>> bounds;  // one for each of the parameters
  db_keep keep = 0;
  db_gradients gradients = 0;
  db_dtype compute = 0;  // 0: the parameter's own
  db_dtype reduce = 0;
  db_dtype output = 0;
};

struct PlannedOffload {
  db_place place = DB_PLACE_STAY;
  bool pinned = false;
  std::string folder;
  int32_t buffers = 0;
};

struct PlannedOffloads {
  PlannedOffload optimizer;
  PlannedOffload parameters;
};

// A plan of these units; what concerns all of them (group, prefetch, …) is taken from rest. The
// caller, and in the end the host, gives it back by release_plan.
const db_plan* make_plan(std::vector<PlannedUnit> units, const db_plan& rest,
                         PlannedOffloads offloads = {});

// plan: of make_plan, or NULL.
void release_plan(const db_plan* plan);

}  // namespace db
