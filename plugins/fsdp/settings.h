// The options of this backend, with their defaults and validated form. Plain values.
#pragma once

#include <coupler/sharding.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/options.h"
#include "common/plan_builder.h"
#include "common/sharding_communicator.h"

namespace db::fsdp {

inline constexpr db_option kOptions[] = {
    string_option("strategy", "full_shard",
                  "full_shard (parameters, gradients and optimizer state are sharded; parameters "
                  "are gathered for each use), shard_grad_op (gathered parameters stay until their "
                  "gradients are reduced), hybrid_shard (full_shard within groups of ranks, "
                  "replicated across groups), or no_shard (everything is replicated)."),
    i64_option("group_size", 0,
               "Ranks that share one copy of the parameters with hybrid_shard; must divide the "
               "number of ranks; 0: the ranks of one machine."),
    bool_option("reshard_after_forward", true,
                "With full_shard and hybrid_shard: whether gathered parameters may be released "
                "between forward and backward; false keeps them, as shard_grad_op always does."),
    i64_option("prefetch", 1, "Units gathered ahead of use; 0: none."),
    string_option("param_dtype", "",
                  "Data type in which parameters are gathered and used in computation: bf16, f16, "
                  "f32, f64; empty: their own."),
    string_option("reduce_dtype", "",
                  "Data type in which gradients are communicated: bf16, f16, f32, f64; empty: the "
                  "same as param_dtype."),
    string_option("output_dtype", "",
                  "Data type of the results of a unit's operations: bf16, f16, f32, f64; empty: "
                  "unchanged."),
    string_option("ignore", "",
                  "Comma-separated names of modules and parameters that are replicated instead of "
                  "sharded; * matches any characters except dots, ** any characters."),
    string_option("units", "modules",
                  "How units, which are gathered and released together, are formed: modules (each "
                  "module with parameters of its own), types (modules of unit_types), size (at "
                  "least unit_min_parameters elements), or names (modules of unit_names)."),
    string_option("unit_types", "",
                  "With units = types: comma-separated module types, such as "
                  "torch::nn::TransformerEncoderLayerImpl or TransformerEncoderLayer; everything "
                  "else forms one more unit."),
    i64_option("unit_min_parameters", 1000000,
               "With units = size: modules are joined in registration order until a unit has at "
               "least this many elements."),
    string_option("unit_names", "",
                  "With units = names: comma-separated dotted names of modules, with * and ** as "
                  "in ignore; everything else forms one more unit."),
    i64_option("unit_join_below", 10000,
               "With units = modules: a unit with fewer elements is joined with the next one, the "
               "last with the one before it, so that small layers are not gathered alone."),
    string_option("offload.device", "none",
                  "Where a rank's parts of parameters, gradients and optimizer state are kept "
                  "while they are not in use: none (with the model), cpu, or nvme (a disk)."),
    string_option("offload.nvme_path", "",
                  "With nvme: a folder on that disk. The files in it are unnamed and disappear "
                  "with the process."),
    bool_option("offload.pin_memory", false,
                "With cpu: use page-locked memory, from which GPUs copy faster."),
    i64_option("offload.buffer_count", 4,
               "With nvme: blocks read ahead, and as many waiting to be written. A block is a "
               "rank's part of one unit: of its parameters, its gradients, or one state tensor."),
};

enum class Units { kModules, kTypes, kSize, kNames };

struct Settings {
  bool shards = true;  // false: no_shard
  int32_t group_size = 1;
  db_keep keep = DB_KEEP_USE;
  int32_t prefetch = 0;
  db_dtype param_dtype = 0;
  db_dtype reduce_dtype = 0;
  db_dtype output_dtype = 0;
  std::vector<std::string> ignore;
  Units units = Units::kModules;
  std::vector<std::string> unit_types;
  std::vector<std::string> unit_names;
  uint64_t least = 0;  // elements of a unit, for kModules and kSize
  PlannedOffload offload;
};

// DB_ERR_INVALID_ARGUMENT; text names the option, its value, and the valid values.
Failure wrong_option(const std::string& text);

// Every wrong value that can be detected without a model is DB_ERR_INVALID_ARGUMENT here.
Failure read_settings(const Options& options, const Place& place, Settings* settings);

}  // namespace db::fsdp
