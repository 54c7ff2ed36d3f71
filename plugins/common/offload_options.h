// The options, under DeepSpeed's names, that choose where a sharding plugin keeps state that is not
// in use, and their validated form. Plain values; [any-thread].
#pragma once

#include "common/options.h"
#include "common/plan_builder.h"

namespace db {

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
