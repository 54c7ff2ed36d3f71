// A test double: a third party's sharding plugin whose plans have the fault that its option names.
// Otherwise a module's parameters are a unit, and each belongs to rank 0.
#include <numeric>
#include <string>

#include "common/plan_builder.h"
#include "common/sharding_communicator.h"

namespace {

using namespace db;

constexpr db_option kFault = {.struct_size = sizeof(db_option),
                              .key = "fault",
                              .type = DB_OPTION_STRING,
                              .string = "",
                              .description =
                                  "overlap, short, descending, alone, unknown, keep or "
                                  "dtype; empty: none."};
constexpr const db_option* kOptions[] = {&kFault};

Failure check(const Options&, const Place&) { return {}; }

Failure plan(const Options& options, const Place& place, const Model& model,
             const db_plan** result) {
  const std::string fault = options.string("fault");
  std::vector<PlannedUnit> units;
  for (size_t i = 0; i < model.parameters.size(); ++i) {
    PlannedUnit unit;
    unit.name = std::string("unit of ") + std::string(model.parameters[i].name);
    unit.parameters = {i};
    const uint64_t all = model.parameters[i].elements;
    std::vector<uint64_t> bounds(static_cast<size_t>(place.size) + 1, all);
    bounds[0] = 0;
    if (i == 1 && fault == "short") bounds.back() = all - 1, bounds[1] = all - 1;
    if (i == 1 && fault == "descending") bounds[1] = all + 1;
    if (i == 1 && fault == "alone" && place.rank == 1) bounds[1] = 0;
    if (i == 1 && fault == "unknown") unit.parameters = {model.parameters.size()};
    unit.bounds = {bounds};
    unit.keep = i == 1 && fault == "keep" ? 9 : DB_KEEP_USE;
    unit.gradients = DB_GRADIENTS_SHARD;
    if (i == 1 && fault == "dtype") unit.compute = DB_I32;
    units.push_back(unit);
    if (i == 1 && fault == "overlap") {
      unit.name = "the other unit";
      units.push_back(unit);
    }
  }
  db_plan rest{};
  rest.overlap = -1;
  if (fault == "groups") rest.group = place.rank == 0 ? 0 : 1;
  *result = make_plan(std::move(units), rest);
  return {};
}

constexpr ShardingBackend kSharding = {"bad_plan", kOptions, 1, check, plan};

const db_option* const* default_options(uint64_t* count) {
  *count = 1;
  return kOptions;
}
db_status create(const db_communicator_params* params, db_communicator** result, db_error* error) {
  return create_sharding(kSharding, params, result, error);
}
db_status make(const db_communicator* communicator, const db_model* model,
               const db_plan** plan_made, db_error* error) {
  return plan_sharding(kSharding, communicator, model, plan_made, error);
}
constexpr db_sharding kExtension = {sizeof(db_sharding), make, release_plan};
const void* get_extension(const char* id) {
  return std::string(id) == DB_SHARDING ? &kExtension : nullptr;
}

constexpr DistributedBackend kBackend = {
    sizeof(DistributedBackend),
    DB_ABI_MAJOR,
    DB_ABI_MINOR,
    "bad_plan",
    "0.1.0",
    "A test double: plans that cannot be used",
    DB_CAP_NEEDS_BASE | DB_CAP_ABORT | DB_CAP_SPLIT | DB_CAP_HOST_MEMORY,
    probe_sharding,
    default_options,
    create,
    get_extension};

}  // namespace

extern "C" DB_EXPORT const DistributedBackend* coupler_distributed_backend_v1(void) {
  return &kBackend;
}
