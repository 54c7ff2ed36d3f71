// The deepspeed_like backend's table. Its decisions are in settings.h (options) and plan.cc; all
// communication is passed on to the base.
#include <algorithm>
#include <utility>

#include "common/plan_builder.h"
#include "common/sharding_communicator.h"
#include "common/types.h"
#include "common/units.h"
#include "deepspeed_like/settings.h"

namespace db::deepspeed_like {

// How this backend plans a model. [any-thread]

namespace {

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
      for (const uint64_t p : unit.parameters) elements += model_.parameters[p].elements;
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
      const db_dtype own = model_.parameters[draft.parameters.front()].dtype;
      PlannedUnit& unit = units_.emplace_back();
      unit.bounds = flat_bounds(model_, draft, ranks_);
      unit.parameters.assign(draft.parameters.begin(), draft.parameters.end());
      unit.name = std::move(draft.name);
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
constexpr auto kPresetPointers = pointers_to(kPresets);

constexpr auto kOptionPointers = pointers_to(kOptions);
constexpr ShardingBackend kShardingBackend = {
    "deepspeed_like",
    kOptionPointers.data(),
    kOptionPointers.size(),
    check,
    plan,
    {sizeof(db_presets), kPresetPointers.data(), kPresetPointers.size()}};
constexpr DistributedBackend kBackend = sharding_table<kShardingBackend>(
    "0.1.0", "ZeRO stages on flat buffers, with DeepSpeed's options, over any transport");

}  // namespace

}  // namespace db::deepspeed_like

extern "C" DB_EXPORT const DistributedBackend* coupler_distributed_backend_v1(void) {
  return &db::deepspeed_like::kBackend;
}
