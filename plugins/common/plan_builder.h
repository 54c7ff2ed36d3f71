// Memory of a db_plan: make_plan builds one from units, release_plan frees it. [any-thread]
#pragma once

#include <coupler/sharding.h>

#include <string>
#include <vector>

namespace db {

struct PlannedUnit {
  std::string name;
  std::vector<uint64_t> parameters;           // indices
  std::vector<std::vector<uint64_t>> bounds;  // one per parameter
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

// A plan of these units; settings of the whole plan (group, prefetch, …) come from rest. Its owner,
// ultimately the host, frees it with release_plan.
const db_plan* make_plan(std::vector<PlannedUnit> units, const db_plan& rest,
                         PlannedOffloads offloads = {});

// plan: from make_plan, or NULL.
void release_plan(const db_plan* plan);

}  // namespace db
