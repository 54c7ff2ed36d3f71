// DeepSpeed's ds_config.json (https://www.deepspeed.ai/docs/config-json).
#include <coupler/error.h>
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "base/text.h"
#include "cli/import/config_import.h"

namespace coupler::cli {
namespace {

using Json = nlohmann::ordered_json;  // keeps the order of keys

std::string ours(const char* key) { return fmt::format("backend.deepspeed_like.{}", key); }

// A mixed-precision type that has its own table with a switch.
ImportRule precision_switch(const char* name) {
  return [name](ConfigDraft& draft, const std::string& value) -> Answer {
    if (is_left_open(value)) return "unspecified there: set training.mixed_precision";
    if (is_off(value)) return switched_off();
    if (!is_on(value)) return refused(value, "yes or no");
    draft.set("training.mixed_precision", std::string(name));
    return {};
  };
}

// Offloading as older versions enabled it, by a boolean.
ImportRule older_offload(const char* key) {
  return [key](ConfigDraft& draft, const std::string& value) -> Answer {
    if (!is_on(value)) return is_left_open(value) ? left_open() : switched_off();
    draft.set(ours(key), std::string("cpu"));
    return {};
  };
}

// In older versions "zero_optimization": true means stage 1.
Answer zero_switch(ConfigDraft& draft, const std::string& value) {
  if (is_left_open(value)) return left_open();
  if (!is_on(value) && !is_off(value)) return refused(value, "yes, no or a table");
  draft.set(ours("stage"), int64_t{is_on(value) ? 1 : 0});
  return {};
}

const ImportRules& rules() {
  static const ImportRules all = {
      {"zero_optimization", zero_switch},
      {"zero_optimization.stage", as_integer(ours("stage"), 0, 3)},
      {"zero_optimization.cpu_offload", older_offload("offload_optimizer.device")},
      {"zero_optimization.cpu_offload_params", older_offload("offload_param.device")},
      {"zero_optimization.cpu_offload_use_pin_memory",
       as_boolean(ours("offload_optimizer.pin_memory"))},
      {"zero_optimization.reduce_bucket_size", as_integer(ours("reduce_bucket_size"), 1)},
      {"zero_optimization.allgather_bucket_size", as_integer(ours("allgather_bucket_size"), 1)},
      {"zero_optimization.overlap_comm",
       [](ConfigDraft& draft, const std::string& value) -> Answer {
         if (is_left_open(value)) return left_open();
         if (!is_on(value) && !is_off(value)) return refused(value, "yes or no");
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
       without("units are kept in their order of use")},
      {"zero_optimization.stage3_gather_16bit_weights_on_model_save",
       without("save_model writes whole weights")},
      {"zero_optimization.stage3_gather_fp16_weights_on_model_save",
       without("save_model writes whole weights")},
      {"zero_optimization.contiguous_gradients", without("gradients are always contiguous")},
      {"zero_optimization.allgather_partitions", without("always on")},
      {"zero_optimization.reduce_scatter", without("always on")},
      {"zero_optimization.round_robin_gradients", without("not needed")},
      {"zero_optimization.sub_group_size", without("the optimizer updates one unit at a time")},
      {"zero_optimization.offload_optimizer.device",
       as_word(ours("offload_optimizer.device"), kOffloadDevices)},
      {"zero_optimization.offload_optimizer.nvme_path",
       as_text(ours("offload_optimizer.nvme_path"))},
      {"zero_optimization.offload_optimizer.pin_memory",
       as_boolean(ours("offload_optimizer.pin_memory"))},
      {"zero_optimization.offload_optimizer.buffer_count",
       as_integer(ours("offload_optimizer.buffer_count"), 1)},
      {"zero_optimization.offload_optimizer.fast_init", without("not needed")},
      {"zero_optimization.offload_optimizer.pipeline_read",
       without("reads overlap with the update")},
      {"zero_optimization.offload_optimizer.pipeline_write",
       without("writes overlap with the update")},
      {"zero_optimization.offload_optimizer.ratio", without("all of the state is offloaded")},
      {"zero_optimization.offload_param.device",
       as_word(ours("offload_param.device"), kOffloadDevices)},
      {"zero_optimization.offload_param.nvme_path", as_text(ours("offload_param.nvme_path"))},
      {"zero_optimization.offload_param.pin_memory", as_boolean(ours("offload_param.pin_memory"))},
      {"zero_optimization.offload_param.buffer_count",
       as_integer(ours("offload_param.buffer_count"), 1)},
      {"zero_optimization.offload_param.buffer_size", without("buffers are as large as units")},
      {"zero_optimization.offload_param.max_in_cpu", without("the page cache keeps what fits")},
      {"communication_data_type",
       [](ConfigDraft& draft, const std::string& value) -> Answer {
         const std::string type = value == "fp16"    ? "f16"
                                  : value == "bfp16" ? "bf16"
                                  : value == "bf16"  ? "bf16"
                                  : value == "fp32"  ? "f32"
                                                     : "";
         if (is_left_open(value)) return left_open();
         if (type.empty()) return refused(value, "a DeepSpeed type");
         draft.set(ours("communication_data_type"), type);
         return {};
       }},
      {"bf16.enabled", precision_switch("bf16")},
      {"bfloat16.enabled", precision_switch("bf16")},
      {"fp16.enabled", precision_switch("fp16")},
      {"fp16.auto_cast",
       without(
           "autocast applies in loops over prepared loaders and inside accelerator.autocast()")},
      {"fp16.initial_scale_power",
       [](ConfigDraft& draft, const std::string& value) -> Answer {
         const auto power = integer_of(value);
         if (is_left_open(value)) return left_open();
         if (!power || *power < 0 || *power > 60) return refused(value, "a power from 0 to 60");
         draft.set("training.loss_scale_init_scale", std::exp2(static_cast<double>(*power)));
         return {};
       }},
      {"fp16.loss_scale_window", as_integer("training.loss_scale_growth_interval", 1)},
      {"fp16.loss_scale",
       [](ConfigDraft&, const std::string& value) -> Answer {
         return integer_of(value) == 0 || is_left_open(value)
                    ? "the scale is dynamic here as well"
                    : "the scale is dynamic here; training.loss_scale_init_scale sets its start";
       }},
      {"fp16.consecutive_hysteresis", without("the scale is lowered at the first overflow")},
      {"fp16.fp16_master_weights_and_grads",
       without_unless_off("weights and gradients keep their own dtypes")},
      {"bf16.immediate_grad_update", without("gradients are summed in the parameter's own dtype")},
      {"bf16.check_grad_overflow", without("bf16 has the range of fp32")},
      {"data_types.grad_accum_dtype", without("gradients are summed in the parameter's own dtype")},
      {"fp16.hysteresis", without("the scale is lowered at the first overflow")},
      {"fp16.min_loss_scale", without("the scale is lowered as far as needed")},
      {"gradient_accumulation_steps", as_integer("training.gradient_accumulation_steps")},
      {"gradient_clipping",
       without_unless_off("call accelerator.clip_grad_norm(net, …) in the loop")},
      {"train_batch_size", without("the loader's batch_size times ranks and accumulation steps")},
      {"train_micro_batch_size_per_gpu", without("the loader's batch_size")},
      {"steps_per_print", without("the training loop prints")},
      {"wall_clock_breakdown", without("set profile.dir to write traces")},
      {"dump_state", without("coupler config --explain prints it")},
      {"memory_breakdown", without("coupler estimate prints it")},
      {"dataloader_drop_last", without("set drop_last of coupler::data_loader")},
      {"disable_allgather", without("parameters are gathered when needed")},
      {"gradient_predivide_factor", without("gradients are scaled before they are summed")},
      {"sparse_gradients", without_unless_off("gradients are reduced as dense tensors")},
      {"seed", as_integer("training.seed")},
      {"prescale_gradients", without("gradients are scaled before they are summed")},
      {"zero_allow_untested_optimizer", without("any optimizer can be used")},
      {"zero_force_ds_cpu_optimizer", without("the optimizer runs where its state is")},
  };
  return all;
}

std::string answer_for_table(const std::string& table) {
  static const std::map<std::string, std::string> answers = {
      {"optimizer", "created in the program"},
      {"scheduler", "created in the program"},
      {"activation_checkpointing", "memory.activation_checkpointing takes module names"},
      {"aio", "reads and writes are tuned automatically"},
      {"flops_profiler", "set profile.dir to write traces"},
      {"comms_logger", "set profile.dir to write traces"},
      {"tensorboard", "set training.log_with to name trackers"},
      {"wandb", "set training.log_with to name trackers"},
      {"comet", "set training.log_with to name trackers"},
      {"csv_monitor", "set training.log_with to name trackers"},
      {"checkpoint", "checkpoints are sharded and load on any number of ranks"},
      {"elasticity", "a checkpoint resumes on any number of ranks"},
      {"autotuning", "coupler config recommend compares configurations"},
      {"amp", "set training.mixed_precision"},
      {"torch_autocast", "set training.mixed_precision"},
      {"compile", "C++ modules cannot be traced"},
      {"pipeline", "coupler::prepare_pipeline splits a model into stages"},
      {"compression_training", "not supported for training"},
      {"quantize_training", "not supported for training"},
      {"sparse_attention", "the model defines its attention"},
      {"progressive_layer_drop", "done in the program"},
      {"curriculum_learning", "done in the program"},
      {"data_efficiency", "done in the program"},
      {"tensor_parallel", "set parallel.tensor"},
  };
  const auto found = answers.find(table);
  return found == answers.end() ? "" : found->second;
}

std::string entry_text(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return value.dump();
  std::string text;
  for (const Json& item : value) text += (text.empty() ? "" : ",") + entry_text(item);
  return text;
}

void flatten(const std::string& path, const Json& value, ImportEntries& entries) {
  if (!value.is_object()) {
    entries.emplace_back(path, entry_text(value));
    return;
  }
  for (const auto& [key, inner] : value.items())
    flatten(path.empty() ? key : fmt::format("{}.{}", path, key), inner, entries);
}

[[noreturn]] void refuse_file(const std::string& where, const std::string& problem) {
  throw Error(ErrorCode::kConfig, fmt::format("{}: {}", where, problem),
              {.subject = where, .hint = "give DeepSpeed's ds_config.json"});
}

// A duplicate key in a table is an error, as it is for DeepSpeed.
Json parse_json(const std::string& text, const std::string& where) {
  std::vector<std::set<std::string>> keys(1);
  const auto look = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > kMaxLevels)
      refuse_file(where, fmt::format("more than {} levels of tables", kMaxLevels));
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second)
      refuse_file(where, fmt::format("the key '{}' occurs twice in its table",
                                     for_message(value.get<std::string>())));
    return true;
  };
  try {
    return Json::parse(text, look, true, /*ignore_comments=*/true);
  } catch (const Json::parse_error& error) {
    // "[json.exception.parse_error.101] parse error at line 1, …"
    const std::string problem = error.what();
    refuse_file(where, "invalid JSON: " + problem.substr(problem.find("] ") + 2));
  }
}

}  // namespace

Import import_deepspeed(const std::string& text, const std::string& where) {
  const Json root = parse_json(text, where);
  if (!root.is_object()) refuse_file(where, "it contains no keys and values");
  ImportEntries entries;
  flatten("", root, entries);
  Import result;
  result.draft.set("backend.use", std::string("deepspeed_like"));
  apply_rules(rules(), answer_for_table, entries, result);
  // DeepSpeed's own default, which differs from ours.
  if (!result.draft.has(ours("stage"))) result.draft.set(ours("stage"), int64_t{0});
  resolve_import(result);
  return result;
}

}  // namespace coupler::cli
