// The options by which a sharding plugin's user says where state goes that is not in use, by
// DeepSpeed's names, and their checked form. Plain values; [any-thread].
#pragma once

#include "common/options.h"
#include "common/plan_builder.h"

namespace db {

// The keys of one group of them.
struct OffloadKeys {
  const char* device;        // none, cpu, nvme
  const char* nvme_path;     // a folder
  const char* pin_memory;    // bool
  const char* buffer_count;  // a number
};

// Every wrong value, and one that the device does not read, is DB_ERR_INVALID_ARGUMENT.
Failure read_offload(const Options& options, const OffloadKeys& keys, PlannedOffload* offload);

}  // namespace db
