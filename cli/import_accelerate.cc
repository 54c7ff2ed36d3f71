// What `accelerate config` writes: its keys (commands/config/config_args.py and cluster.py of
// Accelerate 1.15, and those of older versions that it still reads).
#include <coupler/error.h>
#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>

#include "config_import.h"
#include "import_rules.h"

namespace coupler::cli {
namespace {

ImportRule precision() {
  return [](ConfigDraft& draft, const std::string& value) -> std::string {
    const std::string text = lower(value);
    if (text == "false") {  // YAML's "no"
      draft.set("training.mixed_precision", std::string("no"));
      return {};
    }
    for (const char* known : {"no", "fp16", "bf16", "fp8"}) {
      if (text != known) continue;
      draft.set("training.mixed_precision", text);
      return {};
    }
    return fmt::format("'{}' is none of no, fp16, bf16, fp8: left at its default", value);
  };
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
  } else if (text == "megatron_lm") {
    return "tensor parallelism is not there; fsdp divides a model that is left as it is";
  } else if (text == "tpu" || text == "xla") {
    return "TPUs need a third party's plugin";
  } else {
    return "needs a plugin of that hardware's maker";
  }
  return {};
}

std::string sharding_strategy(ConfigDraft& draft, const std::string& value) {
  // Numbers are those of torch's enumeration.
  static const std::vector<std::string> kNames = {"full_shard", "shard_grad_op", "no_shard",
                                                  "hybrid_shard", "hybrid_shard_zero2"};
  const auto number = integer_of(value);
  const std::string name = number && *number >= 1 && *number <= 5
                               ? kNames[static_cast<size_t>(*number - 1)]
                               : lower(value);
  if (std::find(kNames.begin(), kNames.end(), name) == kNames.end())
    return fmt::format("'{}' is no strategy of torch's: left at its default", value);
  if (name == "hybrid_shard_zero2") {
    draft.set("backend.fsdp.strategy", std::string("hybrid_shard"));
    draft.set("backend.fsdp.reshard_after_forward", false);
  } else {
    draft.set("backend.fsdp.strategy", name);
  }
  return {};
}

// A yes or no since version 2; before that a strategy stood there.
std::string reshard(ConfigDraft& draft, const std::string& value) {
  if (!is_on(value) && !is_off(value)) return sharding_strategy(draft, value);
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
    return "the default makes units of modules; units = \"names\" chooses them";
  } else {
    return fmt::format("'{}' is no policy of Accelerate's: left at its default", value);
  }
  return {};
}

std::string prefetch(ConfigDraft& draft, const std::string& value) {
  if (lower(value) == "no_prefetch" || is_off(value)) {
    if (!draft.has("backend.fsdp.prefetch"))
      draft.set("backend.fsdp.prefetch", static_cast<int64_t>(0));
  } else {
    draft.set("backend.fsdp.prefetch", static_cast<int64_t>(1));
  }
  return {};
}

ImportRule offload_device(const std::string& plugin_key) {
  return [plugin_key](ConfigDraft& draft, const std::string& value) -> std::string {
    if (is_off(value)) return "off there; nothing to set";
    draft.set(plugin_key, lower(value));
    return {};
  };
}

std::string processes(ConfigDraft& draft, const std::string& value) {
  const auto number = integer_of(value);
  if (!number || *number < 1) return "to be said with -n of coupler launch";
  draft.set("launch.processes", static_cast<int64_t>(*number));
  return {};
}

const ImportRules& rules() {
  const auto launch = [](const char* words) {
    return without(fmt::format("a word of coupler launch: {}", words));
  };
  const auto always = [](const char* what) { return without(what); };
  static const ImportRules all = {
      {"compute_environment",
       [](ConfigDraft&, const std::string& value) -> std::string {
         return lower(value) == "local_machine" ? "nothing to set"
                                                : "jobs of SageMaker are not started from here";
       }},
      {"distributed_type", distributed_type},
      {"mixed_precision", precision()},
      {"fp16",
       [](ConfigDraft& draft, const std::string& value) -> std::string {
         draft.set("training.mixed_precision", std::string(is_on(value) ? "fp16" : "no"));
         return {};
       }},
      {"use_cpu",
       [](ConfigDraft& draft, const std::string& value) -> std::string {
         if (!is_on(value)) return "off there; nothing to set";
         draft.set("training.device", std::string("cpu"));
         return {};
       }},
      {"debug", always("operations are always compared between ranks")},
      {"num_processes", processes},
      {"num_machines",
       [](ConfigDraft&, const std::string& value) -> std::string {
         return value == "1" ? "nothing to set"
                             : fmt::format("a word of coupler launch: --machines {}", value);
       }},
      {"machine_rank", launch("--machine-rank")},
      {"main_process_ip", launch("--main-address")},
      {"main_process_port", launch("--main-port; on one machine a free one is found")},
      {"gpu_ids",
       [](ConfigDraft&, const std::string& value) -> std::string {
         return lower(value) == "all" ? "nothing to set"
                                      : fmt::format("CUDA_VISIBLE_DEVICES={} says it", value);
       }},
      {"rdzv_backend", always("ranks meet in the launcher's own store")},
      {"rdzv_conf", always("ranks meet in the launcher's own store")},
      {"same_network", always("nothing to set: --main-address is what matters")},
      {"main_training_function", always("a program is launched, not a function of it")},
      {"enable_cpu_affinity", without_unless_off("a word of coupler launch: --bind numa")},
      {"num_cpu_threads_per_process", as_integer("launch.threads_per_process")},
      {"downcast_bf16", without_unless_off("for TPUs")},
      {"tpu_env", always("for TPUs")},
      {"tpu_name", always("for TPUs")},
      {"tpu_zone", always("for TPUs")},
      {"tpu_use_cluster", always("for TPUs")},
      {"tpu_use_sudo", always("for TPUs")},
      {"tpu_vm", always("for TPUs")},
      {"command_file", always("for TPUs")},
      {"command", always("for TPUs")},
      {"ipex_config.ipex", without_unless_off("LibTorch's own kernels are used")},
      {"ipex_config.use_xpu", without_unless_off("needs a plugin of that hardware's maker")},
      {"ec2_instance_type", always("for SageMaker")},
      {"iam_role_name", always("for SageMaker")},
      {"commands", always("for TPUs")},
      {"dynamo_backend", without_unless_off("C++ modules cannot be traced")},
      {"dynamo_config", without_unless_off("C++ modules cannot be traced")},
      {"mpirun_config.mpirun_hostfile",
       [](ConfigDraft& draft, const std::string& value) -> std::string {
         draft.set("backend.use", std::string("mpi"));
         return fmt::format("with a word of coupler launch: --hostfile {}", value);
       }},
      {"mpirun_config.mpirun_ccl", always("Open MPI needs no such setting")},
      {"fp8_config.fp8_format",
       [](ConfigDraft& draft, const std::string& value) -> std::string {
         const std::string text = lower(value);
         if (text != "hybrid" && text != "e4m3") return "left at its default";
         draft.set("training.fp8_format", text);
         return {};
       }},
      {"fp8_config.backend", always("there is one implementation")},
      {"fp8_config.amax_compute_algorithm",
       always("scales are of the tensor itself, not of a history")},
      {"fp8_config.amax_compute_algo", always("scales are of the tensor itself, not of a history")},
      {"fp8_config.amax_history_len", always("scales are of the tensor itself, not of a history")},
      {"fp8_config.amax_history_length",
       always("scales are of the tensor itself, not of a history")},
      {"fp8_config.interval", always("scales are of the tensor itself, not of a history")},
      {"fp8_config.margin", always("scales are of the tensor itself, not of a history")},
      {"fp8_config.override_linear_precision", always("linear layers are fp8 in both directions")},
      {"fp8_config.use_autocast_during_eval", always("accelerator.autocast() is where it stands")},
      {"fp8_config.opt_level", always("for MS-AMP")},
      {"fp8_config.optimization_level", always("for MS-AMP")},
      // FSDP
      {"fsdp_config.fsdp_version", always("parameters are sharded by rows, as in version 2")},
      {"fsdp_config.fsdp_sharding_strategy", sharding_strategy},
      {"fsdp_config.sharding_strategy", sharding_strategy},
      {"fsdp_config.fsdp_reshard_after_forward", reshard},
      {"fsdp_config.fsdp_offload_params",
       [](ConfigDraft& draft, const std::string& value) -> std::string {
         if (!is_on(value)) return "off there; nothing to set";
         draft.set("backend.fsdp.offload.device", std::string("cpu"));
         return {};
       }},
      {"fsdp_config.offload_params",
       [](ConfigDraft& draft, const std::string& value) -> std::string {
         if (!is_on(value)) return "off there; nothing to set";
         draft.set("backend.fsdp.offload.device", std::string("cpu"));
         return {};
       }},
      {"fsdp_config.fsdp_auto_wrap_policy", wrap_policy},
      {"fsdp_config.fsdp_transformer_layer_cls_to_wrap", as_text("backend.fsdp.unit_types")},
      {"fsdp_config.transformer_layer_cls_to_wrap", as_text("backend.fsdp.unit_types")},
      {"fsdp_config.fsdp_min_num_params", as_integer("backend.fsdp.unit_min_parameters")},
      {"fsdp_config.min_num_params", as_integer("backend.fsdp.unit_min_parameters")},
      {"fsdp_config.fsdp_backward_prefetch", prefetch},
      {"fsdp_config.fsdp_backward_prefetch_policy", prefetch},
      {"fsdp_config.fsdp_forward_prefetch", prefetch},
      {"fsdp_config.fsdp_state_dict_type",
       always("checkpoints are sharded, and fit any number of ranks")},
      {"fsdp_config.fsdp_use_orig_params", always("parameters keep names and shapes")},
      {"fsdp_config.fsdp_sync_module_states", always("rank 0's values are everybody's")},
      {"fsdp_config.fsdp_cpu_ram_efficient_loading", always("a file is read once a machine")},
      {"fsdp_config.fsdp_activation_checkpointing",
       without_unless_off(
           "memory.activation_checkpointing takes names of modules: [\"blocks.*\"]")},
      {"fsdp_config.fsdp_ignored_modules", as_text("backend.fsdp.ignore")},
      // DeepSpeed
      {"deepspeed_config.zero_stage", as_integer("backend.deepspeed_like.stage")},
      {"deepspeed_config.offload_optimizer_device",
       offload_device("backend.deepspeed_like.offload_optimizer.device")},
      {"deepspeed_config.offload_param_device",
       offload_device("backend.deepspeed_like.offload_param.device")},
      {"deepspeed_config.offload_optimizer_nvme_path",
       as_text("backend.deepspeed_like.offload_optimizer.nvme_path")},
      {"deepspeed_config.offload_param_nvme_path",
       as_text("backend.deepspeed_like.offload_param.nvme_path")},
      {"deepspeed_config.gradient_accumulation_steps",
       as_integer("training.gradient_accumulation_steps")},
      {"deepspeed_config.gradient_clipping",
       without_unless_off("accelerator.clip_grad_norm(net, …) in the loop")},
      {"deepspeed_config.zero3_init_flag",
       without_unless_off("coupler::EmptyWeights around the model's constructor")},
      {"deepspeed_config.zero3_save_16bit_model", always("save_model writes what there is")},
      {"deepspeed_config.deepspeed_multinode_launcher", always("coupler launch --via mpirun")},
      {"deepspeed_config.deepspeed_hostfile", launch("--hostfile")},
      {"deepspeed_config.deepspeed_exclusion_filter", launch("--hostfile without those machines")},
      {"deepspeed_config.deepspeed_inclusion_filter", launch("--hostfile with those machines")},
      {"deepspeed_config.deepspeed_moe_layer_cls_names",
       always("such modules are gathered on demand")},
      {"deepspeed_config.deepspeed_config_file",
       always("import that file, too: coupler config import FILE.json")},
      // ParallelismConfig
      {"parallelism_config.parallelism_config_dp_replicate_size",
       [](ConfigDraft& draft, const std::string& value) -> std::string {
         if (value == "1") return "nothing to set";
         draft.set("backend.fsdp.strategy", std::string("hybrid_shard"));
         return {};
       }},
      {"parallelism_config.parallelism_config_dp_shard_size",
       [](ConfigDraft& draft, const std::string& value) -> std::string {
         const auto number = integer_of(value);
         if (!number || *number < 2) return "nothing to set";
         draft.set("backend.fsdp.group_size", static_cast<int64_t>(*number));
         return {};
       }},
  };
  return all;
}

std::string text_of(const YAML::Node& node) {
  if (node.IsScalar()) return node.Scalar();
  if (node.IsNull()) return "null";
  YAML::Emitter out;
  out << YAML::Flow << node;
  return out.c_str();
}

// Tables whose every key has the same answer.
std::string answer_for_table(const std::string& table) {
  if (table == "megatron_lm_config")
    return "tensor parallelism is not there; fsdp divides a model that is left as it is";
  if (table == "dynamo_config") return "C++ modules cannot be traced";
  if (table == "parallelism_config")
    return "tensor, context and sequence parallelism are not there";
  return {};
}

void take(const std::string& path, const YAML::Node& node, Import& result) {
  if (node.IsMap() && node.size() > 0) {
    for (const auto& entry : node) {
      const std::string key = entry.first.as<std::string>();
      take(path.empty() ? key : fmt::format("{}.{}", path, key), entry.second, result);
    }
    return;
  }
  if (node.IsMap()) return;  // a table that is empty
  const std::string why = answer_for_table(path.substr(0, path.find('.')));
  if (!why.empty() && rules().find(path) == rules().end()) {
    result.keys.push_back({path, text_of(node), "", why});
    return;
  }
  apply_rule(rules(), path, text_of(node), result);
}

}  // namespace

Import import_accelerate(const std::string& text, const std::string& where) {
  YAML::Node root;
  try {
    root = YAML::Load(text);
  } catch (const YAML::Exception& error) {
    throw Error(ErrorCode::kConfig,
                fmt::format("{}:{}:{}: no YAML: {}", where, error.mark.line + 1,
                            error.mark.column + 1, error.msg),
                {.subject = where, .hint = "give what `accelerate config` has written"});
  }
  if (!root.IsMap())
    throw Error(ErrorCode::kConfig, fmt::format("{}: there are no keys and values in it", where),
                {.subject = where, .hint = "give what `accelerate config` has written"});
  Import result;
  take("", root, result);
  return result;
}

}  // namespace coupler::cli
