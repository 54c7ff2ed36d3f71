// The fsdp backend's table. Its decisions are in settings.h (options), unit_choice.h (units) and
// plan.cc; all communication is passed on to the base.
#include <utility>

#include "common/plan_builder.h"
#include "common/sharding_communicator.h"
#include "common/types.h"
#include "common/units.h"
#include "fsdp/settings.h"
#include "fsdp/unit_choice.h"

namespace db::fsdp {

// How this backend plans a model. [any-thread]

namespace {

PlannedUnit plan_unit(const Settings& settings, const Model& model, UnitDraft draft) {
  PlannedUnit unit;
  const db_dtype own = model.parameters[draft.parameters.front()].dtype;
  unit.bounds = row_bounds(model, draft, settings.group_size);
  unit.parameters.assign(draft.parameters.begin(), draft.parameters.end());
  unit.name = std::move(draft.name);
  unit.keep = settings.keep;
  unit.gradients = DB_GRADIENTS_SHARD;
  // Integer (quantized) parameters keep their type.
  if (!is_floating(own)) return unit;
  unit.compute = settings.param_dtype;
  unit.reduce = settings.reduce_dtype;
  unit.output = settings.output_dtype;
  return unit;
}

Failure check(const Options& options, const Place& place) {
  Settings settings;
  return read_settings(options, place, &settings);
}

Failure plan(const Options& options, const Place& place, const Model& model, const db_plan** plan) {
  Settings settings;
  std::vector<UnitDraft> drafts;
  Failure failure = read_settings(options, place, &settings);
  if (failure.ok() && settings.shards) failure = choose_units(settings, model, &drafts);
  if (!failure.ok()) return failure;
  std::vector<PlannedUnit> units;
  units.reserve(drafts.size());
  for (UnitDraft& draft : drafts) units.push_back(plan_unit(settings, model, std::move(draft)));
  db_plan rest{};
  rest.group = place.rank / settings.group_size;
  rest.prefetch = settings.prefetch;
  rest.overlap = -1;
  *plan = make_plan(std::move(units), rest, {settings.offload, settings.offload});
  return {};
}

constexpr db_option kFullShard[] = {string_option("strategy", "full_shard", nullptr)};
constexpr db_option kShardGradOp[] = {string_option("strategy", "shard_grad_op", nullptr)};
constexpr db_option kHybridShard[] = {string_option("strategy", "hybrid_shard", nullptr),
                                      i64_option("group_size", 0, nullptr)};
constexpr db_option kNoShard[] = {string_option("strategy", "no_shard", nullptr)};
constexpr db_option kOnDisk[] = {string_option("strategy", "full_shard", nullptr),
                                 string_option("offload.device", "nvme", nullptr),
                                 string_option("offload.nvme_path", DB_PRESET_FOLDER, nullptr)};
constexpr db_preset kPresets[] = {
    preset<kFullShard>("fsdp full_shard", "parameters, gradients and optimizer state", 140),
    preset<kShardGradOp>("fsdp shard_grad_op", "the same, but parameters stay whole during a step",
                         130),
    preset<kHybridShard>("fsdp hybrid_shard",
                         "all of them within a machine; machines hold replicas", 0),
    preset<kNoShard>("fsdp no_shard", "nothing", 0),
    preset<kOnDisk>("fsdp full_shard, all on disk", "the parts of each rank are on a disk", 620),
};
constexpr auto kPresetPointers = pointers_to(kPresets);

constexpr auto kOptionPointers = pointers_to(kOptions);
constexpr ShardingBackend kShardingBackend = {
    "fsdp",
    kOptionPointers.data(),
    kOptionPointers.size(),
    check,
    plan,
    {sizeof(db_presets), kPresetPointers.data(), kPresetPointers.size()}};
constexpr DistributedBackend kBackend = sharding_table<kShardingBackend>(
    "0.1.0",
    "Shards each parameter, its gradient and its optimizer state on dimension 0, over any "
    "transport");

}  // namespace

}  // namespace db::fsdp

extern "C" DB_EXPORT const DistributedBackend* coupler_distributed_backend_v1(void) {
  return &db::fsdp::kBackend;
}
