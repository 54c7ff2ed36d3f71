// What the keys of `accelerate config` become: those of commands/config/config_args.py and
// cluster.py in Accelerate 1.15, and older keys that it still reads.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <set>

#include "base/text.h"
#include "cli/config/config_import.h"

namespace coupler::cli {
namespace {

constexpr const char* kNoTensorParallelism =
    "tensor parallelism is not supported; fsdp shards an unmodified model";
constexpr const char* kNoHistory = "scales come from the current tensor, not from a history";
constexpr const char* kNoTracing = "C++ modules cannot be traced";
constexpr std::array<std::string_view, 7> kOtherHardware = {
    "multi_npu", "multi_mlu", "multi_sdaa", "multi_musa", "multi_xpu", "multi_hpu", "multi_neuron"};

ImportRule unless_one(const char* why) {
  return [why](ConfigDraft&, const std::string& value) -> std::string {
    return value == "1" || is_left_open(value) ? "nothing to set" : why;
  };
}

std::string precision(ConfigDraft& draft, const std::string& value) {
  static const ImportRule word = as_word("training.mixed_precision", {"no", "fp16", "bf16", "fp8"});
  return word(draft, lower(value) == "false" ? "no" : value);  // YAML reads "no" as false
}

std::string distributed_type(ConfigDraft& draft, const std::string& value) {
  const std::string text = lower(value);
  if (text == "no") return "one process needs no backend";
  if (text == "fsdp") {
    draft.set("backend.use", std::string("fsdp"));
  } else if (text == "deepspeed") {
    draft.set("backend.use", std::string("deepspeed_like"));
  } else if (text == "multi_gpu") {
    draft.set("backend.use", std::string("nccl"));
  } else if (text == "multi_cpu") {
    draft.set("training.device", std::string("cpu"));
    draft.set("backend.use", std::string("auto"));
  } else if (text == "megatron_lm" || text == "tp") {
    return kNoTensorParallelism;
  } else if (text == "tpu" || text == "xla") {
    return "TPUs need a third-party plugin";
  } else if (text == "data_parallel" || text == "model_parallel") {
    return "SageMaker jobs are not supported";
  } else if (std::find(kOtherHardware.begin(), kOtherHardware.end(), text) !=
             kOtherHardware.end()) {
    return "needs a plugin from the hardware vendor";
  } else {
    return fmt::format("'{}' is not an Accelerate type: left at its default", for_message(value));
  }
  return {};
}

std::string sharding_strategy(ConfigDraft& draft, const std::string& value) {
  // Numbers are those of torch's ShardingStrategy enumeration.
  static const std::vector<std::string> kNames = {"full_shard", "shard_grad_op", "no_shard",
                                                  "hybrid_shard", "hybrid_shard_zero2"};
  const auto number = integer_of(value);
  const std::string name = number && *number >= 1 && *number <= 5
                               ? kNames[static_cast<size_t>(*number - 1)]
                               : lower(value);
  if (std::find(kNames.begin(), kNames.end(), name) == kNames.end())
    return refused(value, "a torch sharding strategy");
  if (name == "hybrid_shard_zero2") {
    draft.set("backend.fsdp.strategy", std::string("hybrid_shard"));
    draft.set("backend.fsdp.reshard_after_forward", false);
  } else {
    draft.set("backend.fsdp.strategy", name);
  }
  return {};
}

// A boolean since FSDP version 2; before, the key held a strategy.
std::string reshard(ConfigDraft& draft, const std::string& value) {
  if (is_left_open(value)) return left_open();
  // A number means a strategy: 1 is full_shard, which also reshards.
  const bool is_word = !integer_of(value).has_value();
  if (!is_word || (!is_on(value) && !is_off(value))) return sharding_strategy(draft, value);
  draft.set("backend.fsdp.reshard_after_forward", is_on(value));
  return {};
}

std::string wrap_policy(ConfigDraft& draft, const std::string& value) {
  const std::string text = lower(value);
  if (text == "transformer_based_wrap") {
    draft.set("backend.fsdp.units", std::string("types"));
  } else if (text == "size_based_wrap") {
    draft.set("backend.fsdp.units", std::string("size"));
  } else if (text == "no_wrap") {
    return "the default makes one unit per module; units = \"names\" selects modules";
  } else {
    if (is_left_open(value)) return left_open();
    return refused(value, "an Accelerate wrap policy");
  }
  return {};
}

// Numbers are indices, from 1, into Accelerate's list of prefetch modes.
std::string backward_prefetch(ConfigDraft& draft, const std::string& value) {
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
std::string forward_prefetch(ConfigDraft& draft, const std::string& value) {
  if (is_left_open(value)) return left_open();
  if (!is_on(value)) return "prefetch applies to both directions";
  if (draft.has("backend.fsdp.prefetch")) return "prefetch applies to both directions";
  draft.set("backend.fsdp.prefetch", static_cast<int64_t>(1));
  return {};
}

std::string offload_parameters(ConfigDraft& draft, const std::string& value) {
  if (is_left_open(value)) return left_open();
  if (is_off(value)) return "off; nothing to set";
  if (!is_on(value)) return refused(value, "yes or no");
  draft.set("backend.fsdp.offload.device", std::string("cpu"));
  return {};
}

// Theirs is a regular expression that matches whole names; ours has * and **.
std::string ignored_modules(ConfigDraft& draft, const std::string& value) {
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

// A number of `what`, which sets something unless it is 1.
ImportRule of_several(const char* what, void (*set)(ConfigDraft& draft, int64_t number)) {
  return [what, set](ConfigDraft& draft, const std::string& value) -> std::string {
    const auto number = integer_of(value);
    if (number == 1 || is_left_open(value)) return "nothing to set";
    if (!number || *number < 1) return refused(value, fmt::format("a number of {}", what));
    set(draft, *number);
    return {};
  };
}

std::string processes(ConfigDraft& draft, const std::string& value) {
  const auto number = integer_of(value);
  if (is_left_open(value) || number == -1) return "set it with -n of coupler launch";
  if (!number || *number < 1) return refused(value, "a number of processes");
  draft.set("launch.processes", *number);
  return {};
}

}  // namespace

const ImportRules& accelerate_rules() {
  static const ImportRules all = {
      {"compute_environment",
       [](ConfigDraft&, const std::string& value) -> std::string {
         return lower(value) == "local_machine" ? "nothing to set"
                                                : "SageMaker jobs are not supported";
       }},
      {"distributed_type", distributed_type},
      {"mixed_precision", precision},
      {"fp16",
       [](ConfigDraft& draft, const std::string& value) -> std::string {
         draft.set("training.mixed_precision", std::string(is_on(value) ? "fp16" : "no"));
         return {};
       }},
      {"use_cpu",
       [](ConfigDraft& draft, const std::string& value) -> std::string {
         if (is_left_open(value)) return left_open();
         if (!is_on(value)) return "off; nothing to set";
         draft.set("training.device", std::string("cpu"));
         return {};
       }},
      {"debug", without("operations are always compared between ranks")},
      {"num_processes", processes},
      {"num_machines",
       [](ConfigDraft&, const std::string& value) -> std::string {
         return value == "1" || is_left_open(value)
                    ? "nothing to set"
                    : fmt::format("an option of coupler launch: --machines {}", for_message(value));
       }},
      {"machine_rank", word_of_launch("--machine-rank {}")},
      {"main_process_ip", word_of_launch("--main-address {}")},
      {"main_process_port", word_of_launch("--main-port {}; on one machine a free port is chosen")},
      {"gpu_ids",
       [](ConfigDraft&, const std::string& value) -> std::string {
         return lower(value) == "all" || is_left_open(value)
                    ? "nothing to set"
                    : fmt::format("set CUDA_VISIBLE_DEVICES={} instead", for_message(value));
       }},
      {"rdzv_backend", without("ranks meet in the launcher's store")},
      {"rdzv_conf", without("ranks meet in the launcher's store")},
      {"same_network", without("nothing to set: only --main-address matters")},
      {"main_training_function", without("a whole program is launched, not a function")},
      {"enable_cpu_affinity", without_unless_off("an option of coupler launch: --bind numa")},
      {"num_cpu_threads_per_process", as_integer("launch.threads_per_process")},
      {"downcast_bf16", without_unless_off("for TPUs")},
      {"tpu_env", without_unless_off("for TPUs")},
      {"tpu_name", without_unless_off("for TPUs")},
      {"tpu_zone", without_unless_off("for TPUs")},
      {"tpu_use_cluster", without_unless_off("for TPUs")},
      {"tpu_use_sudo", without_unless_off("for TPUs")},
      {"tpu_vm", without_unless_off("for TPUs")},
      {"command_file", without_unless_off("for TPUs")},
      {"command", without_unless_off("for TPUs")},
      {"ipex_config.ipex", without_unless_off("LibTorch's own kernels are used")},
      {"ipex_config.use_xpu", without_unless_off("needs a plugin from the hardware vendor")},
      {"commands", without_unless_off("for TPUs")},
      {"dynamo_backend", without_unless_off(kNoTracing)},
      {"dynamo_config", without_unless_off(kNoTracing)},
      {"mpirun_config.mpirun_hostfile",
       [](ConfigDraft& draft, const std::string& value) -> std::string {
         if (is_left_open(value)) return left_open();
         draft.set("backend.use", std::string("mpi"));
         return fmt::format("also needs options of coupler launch: --via mpirun --hostfile {}",
                            for_message(value));
       }},
      {"mpirun_config.mpirun_ccl", without("Open MPI needs no such setting")},
      {"fp8_config.fp8_format", as_word("training.fp8_format", {"hybrid", "e4m3"})},
      {"fp8_config.enable_fsdp_float8_all_gather",
       without_unless_off("parameters are gathered in their own dtype or in param_dtype")},
      {"fp8_config.pad_inner_dim", without_unless_off("matrix products of every size work")},
      {"fp8_config.backend", without("there is only one implementation")},
      {"fp8_config.amax_compute_algorithm", without(kNoHistory)},
      {"fp8_config.amax_compute_algo", without(kNoHistory)},
      {"fp8_config.amax_history_len", without(kNoHistory)},
      {"fp8_config.amax_history_length", without(kNoHistory)},
      {"fp8_config.interval", without(kNoHistory)},
      {"fp8_config.margin", without(kNoHistory)},
      {"fp8_config.override_linear_precision", without("linear layers are fp8 in both directions")},
      {"fp8_config.use_autocast_during_eval",
       without("autocast applies only inside accelerator.autocast()")},
      {"fp8_config.opt_level", without("for MS-AMP")},
      {"fp8_config.optimization_level", without("for MS-AMP")},
      // FSDP
      {"fsdp_config.fsdp_version", without("parameters are sharded by rows, as in version 2")},
      {"fsdp_config.fsdp_sharding_strategy", sharding_strategy},
      {"fsdp_config.sharding_strategy", sharding_strategy},
      {"fsdp_config.fsdp_reshard_after_forward", reshard},
      {"fsdp_config.fsdp_offload_params", offload_parameters},
      {"fsdp_config.offload_params", offload_parameters},
      {"fsdp_config.fsdp_auto_wrap_policy", wrap_policy},
      {"fsdp_config.fsdp_transformer_layer_cls_to_wrap", as_text("backend.fsdp.unit_types")},
      {"fsdp_config.transformer_layer_cls_to_wrap", as_text("backend.fsdp.unit_types")},
      {"fsdp_config.fsdp_min_num_params", as_integer("backend.fsdp.unit_min_parameters", 1)},
      {"fsdp_config.min_num_params", as_integer("backend.fsdp.unit_min_parameters", 1)},
      {"fsdp_config.backward_prefetch", backward_prefetch},
      {"fsdp_config.fsdp_backward_prefetch", backward_prefetch},
      {"fsdp_config.fsdp_backward_prefetch_policy", backward_prefetch},
      {"fsdp_config.fsdp_forward_prefetch", forward_prefetch},
      {"fsdp_config.fsdp_state_dict_type",
       without("checkpoints are sharded and load on any number of ranks")},
      {"fsdp_config.fsdp_use_orig_params", without("parameters keep names and shapes")},
      {"fsdp_config.fsdp_sync_module_states", without("all ranks start with rank 0's values")},
      {"fsdp_config.fsdp_cpu_ram_efficient_loading", without("a file is read once per machine")},
      {"fsdp_config.fsdp_activation_checkpointing",
       without_unless_off("memory.activation_checkpointing takes module names: [\"blocks.*\"]")},
      {"fsdp_config.fsdp_ignored_modules", ignored_modules},
      // DeepSpeed
      {"deepspeed_config.zero_stage", as_integer("backend.deepspeed_like.stage", 0, 3)},
      {"deepspeed_config.offload_optimizer_device",
       as_word("backend.deepspeed_like.offload_optimizer.device", kOffloadDevices)},
      {"deepspeed_config.offload_param_device",
       as_word("backend.deepspeed_like.offload_param.device", kOffloadDevices)},
      {"deepspeed_config.offload_optimizer_nvme_path",
       as_text("backend.deepspeed_like.offload_optimizer.nvme_path")},
      {"deepspeed_config.offload_param_nvme_path",
       as_text("backend.deepspeed_like.offload_param.nvme_path")},
      {"deepspeed_config.gradient_accumulation_steps",
       as_integer("training.gradient_accumulation_steps")},
      {"deepspeed_config.gradient_clipping",
       without_unless_off("call accelerator.clip_grad_norm(net, …) in the loop")},
      {"deepspeed_config.zero3_init_flag",
       without_unless_off("put coupler::EmptyWeights around the model's constructor")},
      {"deepspeed_config.zero3_save_16bit_model", without("save_model writes whole weights")},
      {"deepspeed_config.deepspeed_multinode_launcher", without("use coupler launch --via mpirun")},
      {"deepspeed_config.deepspeed_hostfile", word_of_launch("--via mpirun --hostfile {}")},
      {"deepspeed_config.deepspeed_exclusion_filter", word_of_launch("--hostfile without {}")},
      {"deepspeed_config.deepspeed_inclusion_filter", word_of_launch("--hostfile with {}")},
      {"deepspeed_config.deepspeed_moe_layer_cls_names", without("modules are gathered on demand")},
      {"deepspeed_config.deepspeed_config_file",
       [](ConfigDraft&, const std::string& value) -> std::string {
         return is_left_open(value) ? left_open()
                                    : fmt::format("also import that file: coupler config import {}",
                                                  for_message(value));
       }},
      // ParallelismConfig
      {"parallelism_config.parallelism_config_dp_replicate_size",
       of_several("replicas",
                  [](ConfigDraft& draft, int64_t) {
                    draft.set("backend.fsdp.strategy", std::string("hybrid_shard"));
                  })},
      // Applies only with hybrid_shard; resolve_import() drops it otherwise.
      {"parallelism_config.parallelism_config_dp_shard_size",
       of_several("ranks", [](ConfigDraft& draft,
                              int64_t ranks) { draft.set("backend.fsdp.group_size", ranks); })},
      {"parallelism_config.parallelism_config_tp_size", unless_one(kNoTensorParallelism)},
      {"parallelism_config.parallelism_config_cp_size",
       unless_one("context parallelism is not supported")},
      {"parallelism_config.parallelism_config_sp_size",
       unless_one("sequence parallelism is not supported")},
  };
  return all;
}

// The answer for a table whose keys all have the same one.
std::string accelerate_table_answer(const std::string& table) {
  if (table == "megatron_lm_config") return kNoTensorParallelism;
  if (table == "dynamo_config") return kNoTracing;
  if (table == "parallelism_config")
    return "tensor, context and sequence parallelism are not supported";
  static const std::set<std::string> of_sagemaker = {"additional_args",
                                                     "base_job_name",
                                                     "ec2_instance_type",
                                                     "iam_role_name",
                                                     "image_uri",
                                                     "profile",
                                                     "py_version",
                                                     "pytorch_version",
                                                     "region",
                                                     "sagemaker_inputs_file",
                                                     "sagemaker_metrics_file",
                                                     "transformers_version"};
  return of_sagemaker.count(table) != 0 ? "for SageMaker" : "";
}

}  // namespace coupler::cli
