// Memory of a db_plan: make_plan builds one from units, release_plan frees it. [any-thread]
#pragma once

#include <coupler/sharding.h>

#include <string>
#include <vector>

#include "common/options.h"

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

// The options, under DeepSpeed's names, that choose where a sharding plugin keeps state that is not
// in use, and their validated form. Plain values; [any-thread].

// The keys of one group of these options.
struct OffloadKeys {
  const char* device;        // none, cpu, nvme
  const char* nvme_path;     // a folder
  const char* pin_memory;    // bool
  const char* buffer_count;  // a number
};

// A wrong value, or an option that the device does not read, is DB_ERR_INVALID_ARGUMENT.
Failure read_offload(const Options& options, const OffloadKeys& keys, PlannedOffload* offload);

}  // namespace db
