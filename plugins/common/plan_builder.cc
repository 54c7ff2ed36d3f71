#include "common/plan_builder.h"

#include <memory>
#include <string>
#include <utility>

#include "common/options.h"

namespace db {
namespace {

// The host's pointer is to the db_plan base; strings and bounds stay in the PlannedUnits.
struct OwnedPlan : db_plan {
  std::vector<PlannedUnit> source;
  std::vector<db_unit_parameter> parameters;
  std::vector<const db_unit_parameter*> parameter_pointers;
  std::vector<db_unit> units;
  std::vector<const db_unit*> unit_pointers;
  PlannedOffloads offloads;
  db_offload of_optimizer{};
  db_offload of_parameters{};
};

// NULL if the state is not offloaded.
const db_offload* fill(const PlannedOffload& from, db_offload* to) {
  if (from.place == DB_PLACE_STAY) return nullptr;
  *to = {sizeof(db_offload),  from.place,
         from.pinned ? 1 : 0, from.place == DB_PLACE_DISK ? from.folder.c_str() : nullptr,
         from.buffers,        0};
  return to;
}

}  // namespace

const db_plan* make_plan(std::vector<PlannedUnit> units, const db_plan& rest,
                         PlannedOffloads offloads) {
  auto made = std::make_unique<OwnedPlan>();
  made->source = std::move(units);
  made->offloads = std::move(offloads);
  for (const PlannedUnit& unit : made->source)
    for (size_t i = 0; i < unit.parameters.size(); ++i)
      made->parameters.push_back(
          {sizeof(db_unit_parameter), unit.parameters[i], unit.bounds[i].data()});
  for (const db_unit_parameter& parameter : made->parameters)
    made->parameter_pointers.push_back(&parameter);
  size_t begin = 0;
  for (const PlannedUnit& unit : made->source) {
    made->units.push_back({sizeof(db_unit), unit.name.c_str(),
                           made->parameter_pointers.data() + begin, unit.parameters.size(),
                           unit.keep, unit.gradients, unit.compute, unit.reduce, unit.output, 0});
    begin += unit.parameters.size();
  }
  for (const db_unit& unit : made->units) made->unit_pointers.push_back(&unit);
  static_cast<db_plan&>(*made) = rest;
  made->struct_size = sizeof(db_plan);
  made->db_plan::units = made->unit_pointers.data();
  made->unit_count = made->unit_pointers.size();
  made->offload_optimizer = fill(made->offloads.optimizer, &made->of_optimizer);
  made->offload_parameters = fill(made->offloads.parameters, &made->of_parameters);
  return made.release();
}

void release_plan(const db_plan* plan) { delete static_cast<const OwnedPlan*>(plan); }

namespace {

constexpr int64_t kMaxBuffers = 1024;

// Without this check, an option that only another device reads would be ignored silently.
Failure check_owner(const Options& options, const OffloadKeys& keys, const char* key, bool read,
                    const char* device) {
  if (read || !options.given(key)) return {};
  return Failure::make(DB_ERR_INVALID_ARGUMENT,
                       "option '" + std::string(key) + "' is for " + keys.device + " = \"" +
                           device + "\", but that is '" + options.string(keys.device) + "'");
}

}  // namespace

Failure read_offload(const Options& options, const OffloadKeys& keys, PlannedOffload* offload) {
  static constexpr db_place kPlaces[] = {DB_PLACE_STAY, DB_PLACE_HOST, DB_PLACE_DISK};
  size_t word = 0;
  int64_t buffers = 0;
  Failure failure = read_word(options, keys.device, {"none", "cpu", "nvme"}, &word);
  if (failure.ok()) failure = read_number(options, keys.buffer_count, 1, kMaxBuffers, &buffers);
  if (!failure.ok()) return failure;
  offload->place = kPlaces[word];
  const bool disk = offload->place == DB_PLACE_DISK;
  const bool host = offload->place == DB_PLACE_HOST;
  failure = check_owner(options, keys, keys.nvme_path, disk, "nvme");
  if (failure.ok()) failure = check_owner(options, keys, keys.buffer_count, disk, "nvme");
  if (failure.ok()) failure = check_owner(options, keys, keys.pin_memory, host, "cpu");
  if (!failure.ok()) return failure;
  offload->pinned = host && options.boolean(keys.pin_memory);
  offload->folder = options.string(keys.nvme_path);
  offload->buffers = static_cast<int32_t>(buffers);
  if (disk && offload->folder.empty())
    return Failure::make(DB_ERR_INVALID_ARGUMENT,
                         std::string(keys.device) + " = \"nvme\" needs option '" + keys.nvme_path +
                             "': a folder on the disk to offload to");
  return {};
}

}  // namespace db
