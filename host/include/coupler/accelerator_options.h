// AcceleratorOptions: settings given in code. A field that is set
// overrides only the setting's default; the configuration file, the environment and the command
// line override the field. A plain value type; `coupler config --explain` describes each setting.
//
//   coupler::Accelerator accelerator(argc, argv, {.gradient_accumulation_steps = 4,
//                                                 .mixed_precision = "bf16"});
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace coupler {

struct AcceleratorOptions {
  // The value of any key; a duration is a string such as "30s".
  using Value = std::variant<std::string, int64_t, double, bool>;

  std::optional<std::string> backend = {};               // backend.use
  std::optional<std::chrono::nanoseconds> timeout = {};  // backend.timeout
  // The keys of [training] with these names.
  std::optional<std::string> device = {};
  std::optional<int64_t> gradient_accumulation_steps = {};
  std::optional<bool> sync_each_batch = {};
  std::optional<bool> sync_with_dataloader = {};
  std::optional<bool> optimizer_in_backward = {};
  std::optional<bool> broadcast_buffers = {};
  std::optional<double> bucket_cap_mb = {};
  std::optional<int64_t> seed = {};
  std::optional<std::string> mixed_precision = {};
  std::optional<std::string> autocast = {};
  std::optional<double> loss_scale_init_scale = {};
  std::optional<double> loss_scale_growth_factor = {};
  std::optional<double> loss_scale_backoff_factor = {};
  std::optional<int64_t> loss_scale_growth_interval = {};
  std::optional<std::string> fp8_format = {};
  std::optional<bool> fp8_emulate = {};
  std::optional<std::vector<std::string>> log_with = {};
  std::optional<std::string> project_dir = {};
  std::optional<std::string> logging_dir = {};
  // The keys of [communication] with these names.
  std::optional<std::string> gradients = {};
  std::optional<int64_t> int8_block = {};
  std::optional<int64_t> powersgd_rank = {};
  std::optional<int64_t> powersgd_start_step = {};
  std::optional<bool> powersgd_warm_start = {};
  std::optional<bool> powersgd_error_feedback = {};
  std::optional<double> powersgd_min_compression_rate = {};
  std::optional<double> powersgd_orthogonalization_epsilon = {};
  std::optional<std::string> powersgd_dtype = {};
  std::optional<int64_t> local_sgd_steps = {};
  std::optional<double> local_sgd_momentum = {};
  // Any setting by its full key, including a backend's own: {"backend.NAME.KEY", value}.
  // They are applied after the fields; later entries win.
  std::vector<std::pair<std::string, Value>> values = {};

  // Appends to values: options.set("training.seed", 7).
  AcceleratorOptions& set(std::string key, Value value) {
    values.emplace_back(std::move(key), std::move(value));
    return *this;
  }
  // Everything that is set, by full key; later entries win. Durations are strings.
  std::vector<std::pair<std::string, Value>> by_key() const;
};

// What Accelerator::profile records, when, and where it is written. Counts are iterations of loops
// over prepared loaders; loops over anything else call on_step_end(). Each round consists of wait,
// warmup and active iterations.
struct ProfileOptions {
  std::string dir = "traces";   // folder of traces and summaries; existing ones are replaced
  int64_t skip_first = 0;       // iterations before the first round
  int64_t wait = 0;             // iterations of a round that are not profiled
  int64_t warmup = 0;           // iterations profiled without keeping the results
  int64_t active = 0;           // iterations recorded; 0: all until the scope ends
  int64_t repeat = 1;           // number of rounds; 0: until the scope ends
  bool record_shapes = false;   // record the shapes of operations' inputs
  bool profile_memory = false;  // record allocations and frees
  bool with_stack = false;      // record the TorchScript call sites of operations
  bool with_flops = false;      // estimate floating-point operations of products and convolutions
};

}  // namespace coupler
