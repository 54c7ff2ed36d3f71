// The options of this backend, with their defaults, and their checked form. Plain values.
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
                  "gradients are reduced), hybrid_shard (full_shard inside groups of ranks, whose "
                  "copies are averaged), or no_shard (everything is replicated)."),
    i64_option("group_size", 0,
               "Ranks that share one copy of the parameters with hybrid_shard, which must divide "
               "the number of ranks; 0: the ranks of one machine."),
    bool_option("reshard_after_forward", true,
                "With full_shard and hybrid_shard: whether gathered parameters may be released "
                "between forward and backward; false keeps them as shard_grad_op, which never "
                "releases them in between."),
    i64_option("prefetch", 1, "Units that are gathered ahead of use; 0: none."),
    string_option("param_dtype", "",
                  "Type in which parameters are gathered and computed with: bf16, f16, f32, f64; "
                  "empty: their own."),
    string_option("reduce_dtype", "",
                  "Type in which gradients travel: bf16, f16, f32, f64; empty: that of "
                  "param_dtype."),
    string_option("output_dtype", "",
                  "Type of the results of a unit's operations: bf16, f16, f32, f64; empty: left "
                  "as they are."),
    string_option("ignore", "",
                  "Modules and parameters, by name and separated by commas, that are replicated "
                  "instead of sharded; * stands for any characters but dots, ** for any."),
    string_option("units", "modules",
                  "How units, which are gathered and released together, are made: modules (each "
                  "that has parameters of its own), types (those of unit_types), size (of at least "
                  "unit_min_parameters), or names (those of unit_names)."),
    string_option("unit_types", "",
                  "With units = types: types of modules, separated by commas, as "
                  "torch::nn::TransformerEncoderLayerImpl or TransformerEncoderLayer; what is in "
                  "none of them is one more unit."),
    i64_option("unit_min_parameters", 1000000,
               "With units = size: modules in order of registration are joined until a unit has at "
               "least this many elements."),
    string_option("unit_names", "",
                  "With units = names: modules by dotted name, separated by commas, with * and ** "
                  "as in ignore; what is in none of them is one more unit."),
    i64_option("unit_join_below", 10000,
               "With units = modules: a unit of fewer elements is joined with the next one, the "
               "last with the one before, so that small layers are not gathered alone."),
    string_option("offload.device", "none",
                  "Where a rank's parts of parameters, gradients and the optimizer's state are "
                  "while nothing uses them: none (with the model), cpu, or nvme (a disk)."),
    string_option("offload.nvme_path", "",
                  "With nvme: a folder on that disk. The files in it have no names and are gone "
                  "with the process."),
    bool_option("offload.pin_memory", false,
                "With cpu: in page-locked memory, which GPUs copy from faster."),
    i64_option("offload.buffer_count", 4,
               "With nvme: blocks that are read ahead, and as many that wait to be written. A "
               "block is a rank's part of one unit: of its parameters, its gradients, or one "
               "tensor of state."),
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

// DB_ERR_INVALID_ARGUMENT; text: the option, its value, and the valid ones.
Failure wrong_option(const std::string& text);

// Every wrong value that can be seen without a model is DB_ERR_INVALID_ARGUMENT here.
Failure read_settings(const Options& options, const Place& place, Settings* settings);

}  // namespace db::fsdp
