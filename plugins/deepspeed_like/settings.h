// The options of this backend, under DeepSpeed's names, with their defaults and validated form.
// Plain values.
#pragma once

#include <coupler/sharding.h>

#include <cstdint>

#include "common/options.h"
#include "common/plan_builder.h"

namespace db::deepspeed_like {

// Defaults that differ from DeepSpeed's are smaller: DeepSpeed's bound the temporary memory for
// models with billions of parameters.
inline constexpr db_option kOptions[] = {
    i64_option("stage", 2,
               "What is sharded: 0 nothing (everything is replicated), 1 the optimizer state, 2 "
               "also the gradients, 3 also the parameters. DeepSpeed's default is 0."),
    i64_option("reduce_bucket_size", 5000000,
               "Elements whose gradients are reduced together; bounds the additional memory of a "
               "step. With stage 0, the host chooses if this is not set. DeepSpeed's default is "
               "500000000."),
    i64_option("allgather_bucket_size", 500000000,
               "Elements gathered together after a step with stages 1 and 2, if less than "
               "reduce_bucket_size."),
    string_option("overlap_comm", "auto",
                  "Whether reductions overlap with backward, as a string: true, false, or auto, "
                  "which measures. DeepSpeed's default is false, or true with stage 3."),
    i64_option("stage3_prefetch_bucket_size", 1000000,
               "Elements gathered ahead of use with stage 3, in whole units, at least one; "
               "0: none. DeepSpeed's default is 50000000."),
    i64_option("stage3_max_live_parameters", 0,
               "Elements that a rank may hold gathered at a time with stage 3; 0: only those in "
               "use or prefetched. DeepSpeed's default is 1000000000."),
    i64_option("stage3_param_persistence_threshold", 10000,
               "With stage 3, a parameter with fewer elements stays whole on every rank. "
               "DeepSpeed's default is 100000."),
    string_option("communication_data_type", "",
                  "Data type in which gradients are communicated: bf16, f16, f32, f64; empty: the "
                  "parameter's own."),
    string_option("offload_optimizer.device", "none",
                  "Where the optimizer state, and with stage 3 the gradients, are kept between "
                  "steps: none (with the model), cpu, or nvme (a disk). Stages 1 to 3."),
    string_option("offload_optimizer.nvme_path", "",
                  "With nvme: a folder on that disk. The files in it are unnamed and disappear "
                  "with the process."),
    bool_option("offload_optimizer.pin_memory", false,
                "With cpu: use page-locked memory, from which GPUs copy faster."),
    i64_option("offload_optimizer.buffer_count", 4,
               "With nvme: blocks read ahead, and as many waiting to be written. A block is a "
               "rank's part of one unit: of its gradients, or of one state tensor."),
    string_option("offload_param.device", "none",
                  "Where a rank's parts of the parameters are kept while they are not in use: "
                  "none, cpu, or nvme. Stage 3."),
    string_option("offload_param.nvme_path", "", "Like offload_optimizer.nvme_path."),
    bool_option("offload_param.pin_memory", false, "Like offload_optimizer.pin_memory."),
    i64_option("offload_param.buffer_count", 5, "Like offload_optimizer.buffer_count."),
};

struct Settings {
  int64_t stage = 2;
  uint64_t bucket = 0;         // elements of a unit that stays whole on every rank
  uint64_t reduce_bucket = 0;  // elements; 0: the host's choice
  int32_t overlap = -1;
  uint64_t prefetch = 0;  // elements
  uint64_t live = 0;      // elements; 0: the minimum that works
  uint64_t persistence_threshold = 0;
  db_dtype reduce_dtype = 0;
  PlannedOffloads offloads;
};

// Every wrong value is DB_ERR_INVALID_ARGUMENT.
Failure read_settings(const Options& options, Settings* settings);

}  // namespace db::deepspeed_like
