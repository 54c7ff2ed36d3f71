// The deepspeed_like backend: its options under DeepSpeed's names, how it plans a model, and its
// table. All communication is passed on to the base. Pure functions; [any-thread].
#include <coupler/sharding.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "common/op.h"
#include "common/options.h"
#include "common/plan_builder.h"
#include "common/sharding_communicator.h"

namespace db::deepspeed_like {
namespace {

// Defaults that differ from DeepSpeed's are smaller: DeepSpeed's bound the temporary memory for
// models with billions of parameters.
constexpr db_option kOptions[] = {
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

Failure read_stage(const Options& options, int64_t* stage) {
  *stage = options.i64("stage");
  if (*stage >= 0 && *stage <= 3) return {};
  return Failure::invalid("option 'stage' is " + std::to_string(*stage) +
                          "; valid: 0 (nothing is sharded), 1 (optimizer state), 2 "
                          "(gradients too), 3 (parameters too)");
}

Failure read_overlap(const Options& options, int32_t* overlap) {
  static constexpr int32_t kValues[] = {-1, 1, 0};
  size_t word = 0;
  Failure failure = read_word(options, "overlap_comm", {"auto", "true", "false"}, &word);
  if (failure.ok()) *overlap = kValues[word];
  return failure;
}

Failure read_sizes(const Options& options, Settings* settings) {
  uint64_t reduce = 0;
  uint64_t gather = 0;
  const struct {
    const char* key;
    int64_t least;
    uint64_t* target;
  } sizes[] = {{"reduce_bucket_size", 1, &reduce},
               {"allgather_bucket_size", 1, &gather},
               {"stage3_prefetch_bucket_size", 0, &settings->prefetch},
               {"stage3_max_live_parameters", 0, &settings->live},
               {"stage3_param_persistence_threshold", 0, &settings->persistence_threshold}};
  for (const auto& size : sizes) {
    int64_t value = 0;
    Failure failure = read_number(options, size.key, size.least, INT64_MAX, &value);
    if (!failure.ok()) return failure;
    *size.target = static_cast<uint64_t>(value);
  }
  settings->bucket = std::min(reduce, gather);
  settings->reduce_bucket = options.given("reduce_bucket_size") ? reduce : 0;
  return {};
}

Failure needs_stage(const char* key, int64_t least, int64_t stage) {
  return Failure::invalid("option '" + std::string(key) + "' needs stage " + std::to_string(least) +
                          (least < 3 ? " or more" : "") + ", but stage is " +
                          std::to_string(stage));
}

Failure read_offloads(const Options& options, int64_t stage, PlannedOffloads* offloads) {
  Failure failure = read_offload(options, "offload_optimizer", &offloads->optimizer);
  if (failure.ok()) failure = read_offload(options, "offload_param", &offloads->parameters);
  if (!failure.ok()) return failure;
  if (offloads->optimizer.place != DB_PLACE_STAY && stage < 1)
    return needs_stage("offload_optimizer.device", 1, stage);
  if (offloads->parameters.place != DB_PLACE_STAY && stage < 3)
    return needs_stage("offload_param.device", 3, stage);
  return {};
}

// Every wrong value is DB_ERR_INVALID_ARGUMENT.
Failure read_settings(const Options& options, Settings* settings) {
  Failure failure = read_stage(options, &settings->stage);
  if (failure.ok()) failure = read_sizes(options, settings);
  if (failure.ok()) failure = read_overlap(options, &settings->overlap);
  if (failure.ok())
    failure = read_dtype(options, "communication_data_type", &settings->reduce_dtype);
  if (failure.ok() && settings->stage == 0 && settings->reduce_dtype != 0)
    return Failure::invalid(
        "option 'communication_data_type' has no effect with stage = 0; remove it, or set stage "
        "to 1, 2 or 3");
  if (failure.ok()) failure = read_offloads(options, settings->stage, &settings->offloads);
  return failure;
}

// How this backend plans a model.

class Planner {
 public:
  Planner(const Settings& settings, const Model& model, int32_t ranks)
      : settings_(settings), model_(model), ranks_(ranks) {}

  // Buckets of the trainable ones among the parameters.
  void add_kept(std::vector<size_t> parameters, const char* name) {
    std::erase_if(parameters, [&](size_t p) { return !model_.parameters[p].trainable; });
    std::reverse(parameters.begin(), parameters.end());
    add(buckets(model_, parameters, settings_.bucket, name), DB_KEEP_ALWAYS);
  }

  void add_gathered(const std::vector<size_t>& parameters) {
    add(units_by_module(model_, parameters), DB_KEEP_USE);
  }

  // How many gathered units of average size fit into the elements to prefetch.
  int32_t prefetch() const {
    uint64_t count = 0;
    uint64_t elements = 0;
    for (const PlannedUnit& unit : units_) {
      if (unit.keep != DB_KEEP_USE) continue;
      ++count;
      elements += count_elements(model_, unit);
    }
    if (settings_.prefetch == 0 || count == 0) return 0;
    const uint64_t average = std::max<uint64_t>(elements / count, 1);
    return static_cast<int32_t>(std::clamp<uint64_t>(settings_.prefetch / average, 1,
                                                     std::min<uint64_t>(count, INT32_MAX)));
  }

  std::vector<PlannedUnit> take() { return std::move(units_); }

 private:
  void add(std::vector<UnitDraft> drafts, db_keep keep) {
    for (UnitDraft& draft : split_by_dtype(model_, std::move(drafts))) {
      PlannedUnit& unit = units_.emplace_back(PlannedUnit{std::move(draft)});
      const db_dtype own = model_.parameters[unit.parameters.front()].dtype;
      unit.bounds = flat_bounds(model_, unit, ranks_);
      unit.keep = keep;
      unit.gradients = settings_.stage == 1 ? DB_GRADIENTS_WHOLE : DB_GRADIENTS_SHARD;
      unit.reduce = is_floating(own) ? settings_.reduce_dtype : 0;
    }
  }

  const Settings& settings_;
  const Model& model_;
  const int32_t ranks_;
  std::vector<PlannedUnit> units_;
};

// reduce_bucket_size is in elements, the plan's reduce_bytes in bytes.
uint64_t reduce_bytes(const Settings& settings, const Model& model) {
  uint64_t size = 0;
  for (const ModelParameter& parameter : model.parameters)
    if (parameter.trainable) size = std::max(size, dtype_size(parameter.dtype));
  uint64_t bytes = 0;
  return __builtin_mul_overflow(settings.reduce_bucket, size, &bytes) ? UINT64_MAX : bytes;
}

Failure check(const Options& options, const Place&) {
  Settings settings;
  return read_settings(options, &settings);
}

Failure plan(const Options& options, const Place& place, const Model& model, const db_plan** plan) {
  Settings settings;
  Failure failure = read_settings(options, &settings);
  if (!failure.ok()) return failure;
  std::vector<size_t> all;
  std::vector<size_t> large;
  std::vector<size_t> small;
  for (size_t i = 0; i < model.parameters.size(); ++i) {
    all.push_back(i);
    const bool kept = model.parameters[i].elements < settings.persistence_threshold;
    (kept ? small : large).push_back(i);
  }
  Planner planner(settings, model, place.size);
  db_plan rest{};
  rest.overlap = settings.overlap;
  if (settings.stage == 0) rest.reduce_bytes = reduce_bytes(settings, model);
  if (settings.stage == 1 || settings.stage == 2) planner.add_kept(std::move(all), "bucket");
  if (settings.stage == 3) {
    planner.add_gathered(large);
    planner.add_kept(std::move(small), "persistent");
    rest.prefetch = planner.prefetch();
    rest.live_elements = settings.live;
  }
  *plan = make_plan(planner.take(), rest, std::move(settings.offloads));
  return {};
}

constexpr db_option kStage1[] = {i64_option("stage", 1, nullptr)};
constexpr db_option kStage2[] = {i64_option("stage", 2, nullptr)};
constexpr db_option kStage3[] = {i64_option("stage", 3, nullptr)};
constexpr db_option kOptimizerOnDisk[] = {
    i64_option("stage", 3, nullptr), string_option("offload_optimizer.device", "nvme", nullptr),
    string_option("offload_optimizer.nvme_path", DB_PRESET_FOLDER, nullptr)};
constexpr db_option kAllOnDisk[] = {
    i64_option("stage", 3, nullptr), string_option("offload_optimizer.device", "nvme", nullptr),
    string_option("offload_optimizer.nvme_path", DB_PRESET_FOLDER, nullptr),
    string_option("offload_param.device", "nvme", nullptr),
    string_option("offload_param.nvme_path", DB_PRESET_FOLDER, nullptr)};
constexpr db_preset kPresets[] = {
    preset<kStage1>("ZeRO stage 1", "the optimizer state", 110),
    preset<kStage2>("ZeRO stage 2", "also gradients", 120),
    preset<kStage3>("ZeRO stage 3", "also parameters", 150),
    preset<kOptimizerOnDisk>("ZeRO stage 3, optimizer on disk",
                             "the optimizer state of each rank is on a disk", 600),
    preset<kAllOnDisk>("ZeRO stage 3, all on disk", "the parts of each rank are on a disk", 610),
};

constexpr ShardingBackend kShardingBackend = {
    "deepspeed_like",
    kPointersTo<kOptions>.data(),
    kPointersTo<kOptions>.size(),
    check,
    plan,
    {sizeof(db_presets), kPointersTo<kPresets>.data(), kPointersTo<kPresets>.size()}};
constexpr DistributedBackend kBackend = sharding_table<kShardingBackend>(
    "0.1.0", "ZeRO stages on flat buffers, with DeepSpeed's options, over any transport");

}  // namespace

}  // namespace db::deepspeed_like

extern "C" DB_EXPORT const DistributedBackend* coupler_distributed_backend_v1(void) {
  return &db::deepspeed_like::kBackend;
}
