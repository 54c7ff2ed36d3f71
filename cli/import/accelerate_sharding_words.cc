// What Accelerate's settings about sharding become: FSDP, DeepSpeed, ParallelismConfig.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/text.h"
#include "cli/import/accelerate_words.h"

namespace coupler::cli {
namespace {

constexpr int64_t kWholeModel = 1'000'000'000'000'000;  // parameters of one unit

Answer sharding_strategy(ConfigDraft& draft, const std::string& value) {
  // Numbers are those of torch's ShardingStrategy enumeration.
  static const std::vector<std::string> kNames = {"full_shard", "shard_grad_op", "no_shard",
                                                  "hybrid_shard", "hybrid_shard_zero2"};
  const auto number = integer_of(value);
  const std::string name = number && *number >= 1 && *number <= 5
                               ? kNames[static_cast<size_t>(*number - 1)]
                               : lower(value);
  if (std::find(kNames.begin(), kNames.end(), name) == kNames.end())
    return refused(value,
                   "one of FULL_SHARD (1), SHARD_GRAD_OP (2), NO_SHARD (3), HYBRID_SHARD (4), "
                   "HYBRID_SHARD_ZERO2 (5)");
  if (name == "hybrid_shard_zero2") {
    draft.set("backend.fsdp.strategy", std::string("hybrid_shard"));
    draft.set("backend.fsdp.reshard_after_forward", false);
  } else {
    draft.set("backend.fsdp.strategy", name);
  }
  return {};
}

// A boolean since FSDP version 2; before, the key held a strategy.
Answer reshard(ConfigDraft& draft, const std::string& value) {
  if (is_left_open(value)) return left_open();
  // A number means a strategy: 1 is full_shard, which also reshards.
  const bool is_word = !integer_of(value).has_value();
  if (!is_word || (!is_on(value) && !is_off(value))) return sharding_strategy(draft, value);
  draft.set("backend.fsdp.reshard_after_forward", is_on(value));
  return {};
}

Answer wrap_policy(ConfigDraft& draft, const std::string& value) {
  const std::string text = lower(value);
  if (text == "transformer_based_wrap") {
    draft.set("backend.fsdp.units", std::string("types"));
  } else if (text == "size_based_wrap") {
    draft.set("backend.fsdp.units", std::string("size"));
  } else if (text == "no_wrap") {
    draft.set("backend.fsdp.units", std::string("size"));
    draft.set("backend.fsdp.unit_min_parameters", kWholeModel);
  } else {
    if (is_left_open(value)) return left_open();
    return refused(value, "an Accelerate wrap policy");
  }
  return {};
}

// Numbers are indices, from 1, into Accelerate's list of prefetch modes.
Answer backward_prefetch(ConfigDraft& draft, const std::string& value) {
  const std::string text = lower(value);
  if (is_left_open(value)) return left_open();
  if (text == "no_prefetch" || text == "3") {
    draft.set("backend.fsdp.prefetch", static_cast<int64_t>(0));
  } else if (text == "backward_pre" || text == "backward_post" || text == "1" || text == "2") {
    draft.set("backend.fsdp.prefetch", static_cast<int64_t>(1));
  } else {
    return refused(value, "a torch prefetch mode");
  }
  return {};
}

// We have one setting for both directions, and the backward one takes precedence.
Answer forward_prefetch(ConfigDraft& draft, const std::string& value) {
  if (is_left_open(value)) return left_open();
  if (is_off(value)) return switched_off();
  if (!is_on(value)) return refused(value, "yes or no");
  if (draft.has("backend.fsdp.prefetch")) return "prefetch applies to both directions";
  draft.set("backend.fsdp.prefetch", static_cast<int64_t>(1));
  return {};
}

// Sets the key if the value means "on".
ImportRule if_on(const char* key, const config::OptionValue& set) {
  return [key, set](ConfigDraft& draft, const std::string& value) -> Answer {
    if (is_left_open(value)) return left_open();
    if (is_off(value)) return switched_off();
    if (!is_on(value)) return refused(value, "yes or no");
    draft.set(key, set);
    return {};
  };
}

// In a file; the option of the launcher is --launcher.
Answer multinode_launcher(ConfigDraft&, const std::string& value) {
  const std::string name = lower(value);
  if (is_left_open(value)) return left_open();
  if (name == "standard" || name == "nossh")
    return unchanged("one launcher on each machine: run coupler launch --machines there");
  if (name == "slurm") return "an option of coupler launch: --via slurm";
  if (name == "openmpi" || name == "mpich" || name == "impi")
    return "an option of coupler launch: --via mpirun";
  return "use coupler launch --via mpirun";
}

// Theirs is a regular expression that matches whole names; ours has * and **.
Answer ignored_modules(ConfigDraft& draft, const std::string& value) {
  if (is_left_open(value)) return left_open();
  const bool is_plain = std::all_of(value.begin(), value.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '.' || c == '|' || c == ',';
  });
  if (!is_plain)
    return "a regular expression: name the modules in ignore of [backend.fsdp], where * matches "
           "any characters except dots and ** matches any characters";
  std::string names = value;
  std::replace(names.begin(), names.end(), '|', ',');
  draft.set("backend.fsdp.ignore", names);
  return {};
}

// Sets a number or names that only one choice of `units` reads, and that choice unless another was
// made.
ImportRule for_units(const char* units, const ImportRule& rule) {
  return [units, rule](ConfigDraft& draft, const std::string& value) -> Answer {
    const std::string* least = draft.find("backend.fsdp.unit_min_parameters");
    if (least != nullptr && *least == std::to_string(kWholeModel)) return "NO_WRAP makes one unit";
    Answer answer = rule(draft, value);
    const bool set = answer.kind == Answer::Kind::kTaken;
    if (set && !draft.has("backend.fsdp.units"))
      draft.set("backend.fsdp.units", std::string(units));
    return answer;
  };
}

// What the sizes mean together is decided by resolve_import().
ImportRule size_of_mesh(const char* what) {
  return [what](ConfigDraft&, const std::string& value) -> Answer {
    const auto number = integer_of(value);
    if (!is_left_open(value) && (!number || *number < 1))
      return refused(value, fmt::format("a number of {}", what));
    return unchanged("nothing to set");
  };
}

std::vector<AccelerateWord> words_of_fsdp() {
  return {
      {"--use_fsdp", {}, {}, {}, "shard parameters, gradients and optimizer state"},
      {"--fsdp_version 1|2",
       {"fsdp_config.fsdp_version"},
       without("parameters are sharded by rows, as in version 2")},
      {"--fsdp_sharding_strategy full_shard|shard_grad_op|no_shard|hybrid_shard",
       {"fsdp_config.fsdp_sharding_strategy", "fsdp_config.sharding_strategy"},
       sharding_strategy,
       {},
       "what --use_fsdp shards; a number from 1 to 5 also works"},
      {"--fsdp_reshard_after_forward true|false",
       {"fsdp_config.fsdp_reshard_after_forward"},
       reshard,
       {},
       "set backend.fsdp.reshard_after_forward, or the strategy if it is one"},
      {"--fsdp_offload_params true|false",
       {"fsdp_config.fsdp_offload_params", "fsdp_config.offload_params"},
       if_on("backend.fsdp.offload.device", std::string("cpu")),
       {},
       "set backend.fsdp.offload.device to cpu"},
      {"--fsdp_auto_wrap_policy transformer_based_wrap|size_based_wrap|no_wrap",
       {"fsdp_config.fsdp_auto_wrap_policy"},
       wrap_policy,
       {},
       "set backend.fsdp.units"},
      {"--fsdp_transformer_layer_cls_to_wrap NAMES",
       {"fsdp_config.fsdp_transformer_layer_cls_to_wrap",
        "fsdp_config.transformer_layer_cls_to_wrap"},
       for_units("types", as_text("backend.fsdp.unit_types")),
       {},
       "set backend.fsdp.unit_types"},
      {"--fsdp_min_num_params N",
       {"fsdp_config.fsdp_min_num_params", "fsdp_config.min_num_params"},
       for_units("size", as_integer("backend.fsdp.unit_min_parameters", 1)),
       {},
       "set backend.fsdp.unit_min_parameters"},
      {"--fsdp_backward_prefetch backward_pre|backward_post|no_prefetch",
       {"fsdp_config.fsdp_backward_prefetch", "fsdp_config.backward_prefetch",
        "fsdp_config.fsdp_backward_prefetch_policy"},
       backward_prefetch,
       {},
       "set backend.fsdp.prefetch, for both directions"},
      {"--fsdp_forward_prefetch true|false",
       {"fsdp_config.fsdp_forward_prefetch"},
       forward_prefetch,
       {},
       "set backend.fsdp.prefetch, for both directions"},
      {"--fsdp_state_dict_type TYPE",
       {"fsdp_config.fsdp_state_dict_type"},
       without("checkpoints are sharded and load on any number of ranks")},
      {"--fsdp_use_orig_params BOOL",
       {"fsdp_config.fsdp_use_orig_params"},
       without("parameters keep names and shapes")},
      {"--fsdp_sync_module_states BOOL",
       {"fsdp_config.fsdp_sync_module_states"},
       without("all ranks start with rank 0's values")},
      {"--fsdp_cpu_ram_efficient_loading BOOL",
       {"fsdp_config.fsdp_cpu_ram_efficient_loading"},
       without("a file is read once per machine")},
      {"--fsdp_activation_checkpointing BOOL",
       {"fsdp_config.fsdp_activation_checkpointing"},
       without_unless_off("memory.activation_checkpointing takes module names: [\"blocks.*\"]",
                          "set it in train.toml, or with -o")},
      {"--fsdp_activation_checkpointing_offload BOOL",
       {"fsdp_config.fsdp_activation_checkpointing_offload"},
       if_on("memory.offload_activations", true),
       {},
       "set memory.offload_activations"},
      {"", {"fsdp_config.fsdp_ignored_modules"}, ignored_modules},
  };
}

std::vector<AccelerateWord> words_of_deepspeed() {
  return {
      {"--use_deepspeed", {}, {}, {}, "shard by DeepSpeed's ZeRO stages"},
      {"--zero_stage 0|1|2|3",
       {"deepspeed_config.zero_stage"},
       as_integer("backend.deepspeed_like.stage", 0, 3),
       {},
       "the stage of --use_deepspeed"},
      {"--offload_optimizer_device none|cpu|nvme",
       {"deepspeed_config.offload_optimizer_device"},
       as_word("backend.deepspeed_like.offload_optimizer.device", kOffloadDevices),
       {},
       "where --use_deepspeed keeps optimizer state"},
      {"--offload_param_device none|cpu|nvme",
       {"deepspeed_config.offload_param_device"},
       as_word("backend.deepspeed_like.offload_param.device", kOffloadDevices),
       {},
       "where --use_deepspeed keeps parameters, with stage 3"},
      {"--offload_optimizer_nvme_path FOLDER",
       {"deepspeed_config.offload_optimizer_nvme_path"},
       as_text("backend.deepspeed_like.offload_optimizer.nvme_path"),
       {},
       "folder for optimizer state on nvme"},
      {"--offload_param_nvme_path FOLDER",
       {"deepspeed_config.offload_param_nvme_path"},
       as_text("backend.deepspeed_like.offload_param.nvme_path"),
       {},
       "folder for parameters on nvme"},
      {"--gradient_accumulation_steps N",
       {"deepspeed_config.gradient_accumulation_steps"},
       as_integer("training.gradient_accumulation_steps"),
       {},
       "same as -o training.gradient_accumulation_steps=N"},
      {"--gradient_clipping X",
       {"deepspeed_config.gradient_clipping"},
       without_unless_off("gradients are clipped in the loop",
                          "call accelerator.clip_grad_norm(net, …) in the loop")},
      {"--zero3_init_flag BOOL",
       {"deepspeed_config.zero3_init_flag"},
       without_unless_off("models are built without memory in the program",
                          "put coupler::EmptyWeights around the model's constructor")},
      {"--zero3_save_16bit_model BOOL",
       {"deepspeed_config.zero3_save_16bit_model"},
       without("save_model writes whole weights")},
      {"--deepspeed_multinode_launcher NAME",
       {"deepspeed_config.deepspeed_multinode_launcher"},
       multinode_launcher,
       "--launcher {}",
       "same as --via mpirun or slurm"},
      {"--deepspeed_hostfile FILE",
       {"deepspeed_config.deepspeed_hostfile"},
       {},
       "--via mpirun --hostfile {}",
       "same as --via mpirun --hostfile FILE"},
      {"--deepspeed_inclusion_filter HOSTS",
       {"deepspeed_config.deepspeed_inclusion_filter"},
       {},
       "--include {}",
       "same as --include HOSTS"},
      {"--deepspeed_exclusion_filter HOSTS",
       {"deepspeed_config.deepspeed_exclusion_filter"},
       {},
       "--exclude {}",
       "same as --exclude HOSTS"},
      {"--deepspeed_moe_layer_cls_names NAMES",
       {"deepspeed_config.deepspeed_moe_layer_cls_names"},
       without("all ranks gather a unit together, so each must run the same experts")},
      {"--deepspeed_config_file FILE",
       {"deepspeed_config.deepspeed_config_file"},
       [](ConfigDraft&, const std::string& value) -> Answer {
         if (is_left_open(value)) return left_open();
         return unsupported("DeepSpeed's JSON is another configuration file",
                            "also import that file: coupler config import " + for_message(value));
       }},
  };
}

Answer heads_over_ranks(ConfigDraft& draft, const std::string& value) {
  Answer answer = as_mesh_size("parallel.context")(draft, value);
  if (answer.kind == Answer::Kind::kTaken)
    draft.set("parallel.context_method", std::string("all_to_all"));
  return answer;
}

std::vector<AccelerateWord> words_of_parallelism() {
  constexpr const char* kRing = "keys and values travel around a ring";
  const auto key = [](const char* name) { return std::vector<std::string_view>{name}; };
  return {
      // The sizes say what it asks for.
      {"--use_parallelism_config", {}, without("")},
      {"--parallelism_config_dp_replicate_size N",
       key("parallelism_config.parallelism_config_dp_replicate_size"),
       size_of_mesh("replicas"),
       {},
       "copies of the model; with dp_shard_size above 1, fsdp's hybrid_shard"},
      {"--parallelism_config_dp_shard_size N",
       key("parallelism_config.parallelism_config_dp_shard_size"),
       size_of_mesh("ranks"),
       {},
       "ranks that share one copy: backend.fsdp.group_size if there are several copies"},
      {"--parallelism_config_tp_size N",
       key("parallelism_config.parallelism_config_tp_size"),
       as_mesh_size("parallel.tensor"),
       {},
       "ranks that layers are divided over, as the model or parallel.tensor_plan says"},
      {"--parallelism_config_cp_size N",
       key("parallelism_config.parallelism_config_cp_size"),
       as_mesh_size("parallel.context"),
       {},
       "ranks that sequences are divided over, in accelerator.context_parallel()"},
      {"--parallelism_config_cp_backend torch",
       key("parallelism_config.parallelism_config_cp_backend"), without(kRing)},
      {"--parallelism_config_cp_comm_strategy WHAT",
       key("parallelism_config.parallelism_config_cp_comm_strategy"), without(kRing)},
      {"--parallelism_config_sp_size N",
       key("parallelism_config.parallelism_config_sp_size"),
       heads_over_ranks,
       {},
       "likewise, where an all-to-all gives each rank all tokens of some heads"},
      {"--parallelism_config_sp_backend deepspeed",
       key("parallelism_config.parallelism_config_sp_backend"),
       without("attention exchanges tokens and heads itself")},
      {"--parallelism_config_sp_seq_length N",
       key("parallelism_config.parallelism_config_sp_seq_length"),
       without("sequences may have any length that divides")},
      {"--parallelism_config_sp_seq_length_is_variable BOOL",
       key("parallelism_config.parallelism_config_sp_seq_length_is_variable"),
       without("sequences may always differ in length")},
      {"--parallelism_config_sp_attn_implementation NAME",
       key("parallelism_config.parallelism_config_sp_attn_implementation"),
       without_unless("sdpa", "the model's own attention is used", "choose it in the program")},
  };
}

}  // namespace

std::vector<AccelerateWord> accelerate_sharding_words() {
  std::vector<AccelerateWord> words = words_of_fsdp();
  for (const auto& part : {words_of_deepspeed(), words_of_parallelism()})
    words.insert(words.end(), part.begin(), part.end());
  return words;
}

}  // namespace coupler::cli
