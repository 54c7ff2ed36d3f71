// DeepSpeed's ds_config.json (https://www.deepspeed.ai/docs/config-json).
#include <coupler/error.h>
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "config_import.h"
#include "import_rules.h"

namespace coupler::cli {
namespace {

using nlohmann::json;

const ImportRules& rules() {
  const auto ours = [](const char* key) { return fmt::format("backend.deepspeed_like.{}", key); };
  const auto precision = [](const char* name) {
    return [name](ConfigDraft& draft, const std::string& value) -> std::string {
      if (!is_on(value)) return "off there; nothing to set";
      draft.set("training.mixed_precision", std::string(name));
      return {};
    };
  };
  static const ImportRules all = {
      {"zero_optimization.stage", as_integer(ours("stage"))},
      {"zero_optimization.reduce_bucket_size", as_integer(ours("reduce_bucket_size"))},
      {"zero_optimization.allgather_bucket_size", as_integer(ours("allgather_bucket_size"))},
      {"zero_optimization.overlap_comm",
       [ours](ConfigDraft& draft, const std::string& value) -> std::string {
         draft.set(ours("overlap_comm"), std::string(is_on(value) ? "true" : "false"));
         return {};
       }},
      {"zero_optimization.stage3_prefetch_bucket_size",
       as_integer(ours("stage3_prefetch_bucket_size"))},
      {"zero_optimization.stage3_max_live_parameters",
       as_integer(ours("stage3_max_live_parameters"))},
      {"zero_optimization.stage3_param_persistence_threshold",
       as_integer(ours("stage3_param_persistence_threshold"))},
      {"zero_optimization.stage3_max_reuse_distance",
       without("units are kept by their order of use")},
      {"zero_optimization.stage3_gather_16bit_weights_on_model_save",
       without("save_model writes whole weights")},
      {"zero_optimization.stage3_gather_fp16_weights_on_model_save",
       without("save_model writes whole weights")},
      {"zero_optimization.contiguous_gradients", without("gradients lie in flat memory")},
      {"zero_optimization.allgather_partitions", without("always so")},
      {"zero_optimization.reduce_scatter", without("always so")},
      {"zero_optimization.round_robin_gradients", without("not needed")},
      {"zero_optimization.sub_group_size", without("a unit is what is updated at a time")},
      {"zero_optimization.offload_optimizer.device", as_text(ours("offload_optimizer.device"))},
      {"zero_optimization.offload_optimizer.nvme_path",
       as_text(ours("offload_optimizer.nvme_path"))},
      {"zero_optimization.offload_optimizer.pin_memory",
       as_boolean(ours("offload_optimizer.pin_memory"))},
      {"zero_optimization.offload_optimizer.buffer_count",
       as_integer(ours("offload_optimizer.buffer_count"))},
      {"zero_optimization.offload_optimizer.fast_init", without("not needed")},
      {"zero_optimization.offload_param.device", as_text(ours("offload_param.device"))},
      {"zero_optimization.offload_param.nvme_path", as_text(ours("offload_param.nvme_path"))},
      {"zero_optimization.offload_param.pin_memory", as_boolean(ours("offload_param.pin_memory"))},
      {"zero_optimization.offload_param.buffer_count",
       as_integer(ours("offload_param.buffer_count"))},
      {"zero_optimization.offload_param.buffer_size", without("buffers are as large as units")},
      {"zero_optimization.offload_param.max_in_cpu", without("the page cache keeps what fits")},
      {"communication_data_type",
       [ours](ConfigDraft& draft, const std::string& value) -> std::string {
         const std::string type = value == "fp16"    ? "f16"
                                  : value == "bfp16" ? "bf16"
                                  : value == "bf16"  ? "bf16"
                                  : value == "fp32"  ? "f32"
                                                     : "";
         if (type.empty()) return "left at its default";
         draft.set(ours("communication_data_type"), type);
         return {};
       }},
      {"bf16.enabled", precision("bf16")},
      {"bfloat16.enabled", precision("bf16")},
      {"fp16.enabled", precision("fp16")},
      {"fp16.auto_cast", without("accelerator.autocast() is where it stands")},
      {"fp16.initial_scale_power",
       [](ConfigDraft& draft, const std::string& value) -> std::string {
         const auto power = integer_of(value);
         if (!power || *power < 0 || *power > 60) return "left at its default";
         draft.set("training.loss_scale_init_scale", std::exp2(static_cast<double>(*power)));
         return {};
       }},
      {"fp16.loss_scale_window", as_integer("training.loss_scale_growth_interval")},
      {"fp16.loss_scale",
       [](ConfigDraft&, const std::string& value) -> std::string {
         return value == "0" ? "the scale adapts here, too" : "the scale always adapts";
       }},
      {"fp16.hysteresis", without("the scale falls at the first overflow")},
      {"fp16.min_loss_scale", without("the scale falls as far as it has to")},
      {"gradient_accumulation_steps", as_integer("training.gradient_accumulation_steps")},
      {"gradient_clipping", without_unless_off("accelerator.clip_grad_norm(net, …) in the loop")},
      {"train_batch_size", without("the loader's batch_size, times ranks and accumulation")},
      {"train_micro_batch_size_per_gpu", without("the loader's batch_size")},
      {"steps_per_print", without("the loop prints")},
      {"wall_clock_breakdown", without("profile.dir has traces made")},
      {"prescale_gradients", without("gradients are scaled before they are summed")},
      {"zero_allow_untested_optimizer", without("every optimizer may be used")},
      {"zero_force_ds_cpu_optimizer", without("optimizers run where the state is")},
  };
  return all;
}

std::string answer_for_table(const std::string& table) {
  if (table == "optimizer" || table == "scheduler") return "made in the program, as everywhere";
  if (table == "activation_checkpointing")
    return "memory.activation_checkpointing takes names of modules";
  if (table == "aio") return "reads and writes are tuned by themselves";
  if (table == "flops_profiler" || table == "comms_logger") return "profile.dir has traces made";
  if (table == "tensorboard" || table == "wandb" || table == "csv_monitor")
    return "training.log_with names trackers";
  if (table == "zero_quantized_weights" || table == "compression_training")
    return "not there for training";
  return {};
}

void take(const std::string& path, const json& value, Import& result) {
  if (value.is_object()) {
    for (const auto& [key, inner] : value.items())
      take(path.empty() ? key : fmt::format("{}.{}", path, key), inner, result);
    return;
  }
  const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  const std::string why = answer_for_table(path.substr(0, path.find('.')));
  if (!why.empty()) {
    result.keys.push_back({path, text, "", why});
    return;
  }
  apply_rule(rules(), path, text, result);
}

}  // namespace

Import import_deepspeed(const std::string& text, const std::string& where) {
  json root;
  try {
    root = json::parse(text, nullptr, true, /*ignore_comments=*/true);
  } catch (const json::parse_error& error) {
    throw Error(ErrorCode::kConfig, fmt::format("{}: no JSON: {}", where, error.what()),
                {.subject = where, .hint = "give DeepSpeed's ds_config.json"});
  }
  if (!root.is_object())
    throw Error(ErrorCode::kConfig, fmt::format("{}: there are no keys and values in it", where),
                {.subject = where, .hint = "give DeepSpeed's ds_config.json"});
  Import result;
  result.draft.set("backend.use", std::string("deepspeed_like"));
  take("", root, result);
  return result;
}

}  // namespace coupler::cli
