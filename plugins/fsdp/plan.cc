#include "fsdp/plan.h"

#include <utility>

#include "common/layout.h"
#include "common/plan_builder.h"
#include "common/types.h"
#include "fsdp/settings.h"
#include "fsdp/unit_choice.h"

namespace db::fsdp {
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

}  // namespace

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

}  // namespace db::fsdp
