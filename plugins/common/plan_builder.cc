#include "common/plan_builder.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "common/op.h"
#include "common/options.h"

namespace db {
namespace {

// For messages: the model's own name is empty.
std::string name_of(const ModelModule& module) {
  return module.name.empty() ? "(root)" : std::string(module.name);
}

// Groups parameters by the module that owner(parameter) returns; groups and their parameters keep
// the order of first appearance.
template <class Owner>
std::vector<UnitDraft> group(const Model& model, const std::vector<size_t>& parameters,
                             const Owner& owner) {
  constexpr size_t kNone = SIZE_MAX;
  std::vector<UnitDraft> drafts;
  std::vector<size_t> draft_of(model.modules.size(), kNone);
  for (const size_t parameter : parameters) {
    const size_t module = owner(parameter);
    size_t& draft = draft_of[module];
    if (draft == kNone) {
      draft = drafts.size();
      drafts.push_back({name_of(model.modules[module]), {}});
    }
    drafts[draft].parameters.push_back(parameter);
  }
  return drafts;
}

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

constexpr int64_t kMaxBuffers = 1024;

}  // namespace

uint64_t count_elements(const Model& model, const UnitDraft& draft) {
  uint64_t sum = 0;
  for (const size_t parameter : draft.parameters) sum += model.parameters[parameter].elements;
  return sum;
}

std::vector<UnitDraft> units_by_module(const Model& model, const std::vector<size_t>& parameters) {
  return group(model, parameters, [&](size_t p) { return model.parameters[p].module; });
}

std::vector<UnitDraft> join_small(const Model& model, const std::vector<UnitDraft>& drafts,
                                  uint64_t least) {
  struct Joined {
    const std::string* first;
    const std::string* last;
    std::vector<size_t> parameters;
    uint64_t elements;
  };
  std::vector<Joined> all;
  for (const UnitDraft& draft : drafts) {
    if (all.empty() || all.back().elements >= least)
      all.push_back({&draft.name, &draft.name, {}, 0});
    Joined& unit = all.back();
    unit.last = &draft.name;
    unit.parameters.insert(unit.parameters.end(), draft.parameters.begin(), draft.parameters.end());
    unit.elements += count_elements(model, draft);
  }
  if (all.size() > 1 && all.back().elements < least) {
    const Joined rest = std::move(all.back());
    all.pop_back();
    all.back().last = rest.last;
    all.back().parameters.insert(all.back().parameters.end(), rest.parameters.begin(),
                                 rest.parameters.end());
  }
  std::vector<UnitDraft> result;
  for (Joined& unit : all) {
    std::string name = *unit.first;
    if (unit.last != unit.first) name += ".." + *unit.last;
    result.push_back({std::move(name), std::move(unit.parameters)});
  }
  return result;
}

std::vector<UnitDraft> units_at(const Model& model, const std::vector<size_t>& parameters,
                                const std::vector<bool>& marked) {
  return group(model, parameters, [&](size_t parameter) {
    size_t module = model.parameters[parameter].module;
    while (!marked[module] && model.modules[module].parent >= 0)
      module = static_cast<size_t>(model.modules[module].parent);
    return module;
  });
}

std::vector<UnitDraft> buckets(const Model& model, const std::vector<size_t>& parameters,
                               uint64_t most, const std::string& name) {
  std::vector<UnitDraft> drafts;
  uint64_t room = 0;
  for (const size_t parameter : parameters) {
    const uint64_t elements = model.parameters[parameter].elements;
    if (drafts.empty() || elements > room) {
      drafts.push_back({name + " " + std::to_string(drafts.size()), {}});
      room = most;
    }
    drafts.back().parameters.push_back(parameter);
    room -= std::min(room, elements);
  }
  return drafts;
}

std::vector<UnitDraft> split_by_dtype(const Model& model, std::vector<UnitDraft> drafts) {
  std::vector<UnitDraft> result;
  for (UnitDraft& draft : drafts) {
    std::vector<std::pair<db_dtype, std::vector<size_t>>> types;
    for (const size_t parameter : draft.parameters) {
      const db_dtype dtype = model.parameters[parameter].dtype;
      auto same = std::find_if(types.begin(), types.end(),
                               [&](const auto& type) { return type.first == dtype; });
      if (same == types.end()) same = types.insert(types.end(), {dtype, {}});
      same->second.push_back(parameter);
    }
    if (types.size() == 1) {
      result.push_back(std::move(draft));
      continue;
    }
    for (auto& [dtype, parameters] : types)
      result.push_back({draft.name + " (" + dtype_name(dtype) + ")", std::move(parameters)});
  }
  return result;
}

std::vector<Bounds> row_bounds(const Model& model, const UnitDraft& draft, int32_t ranks) {
  const auto n = static_cast<uint64_t>(ranks);
  std::vector<Bounds> all;
  for (const size_t index : draft.parameters) {
    const ModelParameter& parameter = model.parameters[index];
    const uint64_t rows = parameter.rows;
    const uint64_t width = rows > 0 ? parameter.elements / rows : 0;
    const uint64_t chunk = rows / n + (rows % n > 0 ? 1 : 0);
    Bounds& bounds = all.emplace_back(1, 0);
    for (uint64_t row = 0; bounds.size() <= n;) {
      row += std::min(chunk, rows - row);
      bounds.push_back(row * width);
    }
  }
  return all;
}

std::vector<Bounds> flat_bounds(const Model& model, const UnitDraft& draft, int32_t ranks) {
  constexpr uint64_t kAlignment = 16;
  const auto n = static_cast<uint64_t>(ranks);
  const uint64_t total = count_elements(model, draft);
  const uint64_t step = total / n >= kAlignment ? kAlignment : 1;
  Bounds cuts;
  for (uint64_t r = 0; r < n; ++r) {
    const uint64_t exact = total / n * r + total % n * r / n;  // total * r / n without overflow
    cuts.push_back(exact);
  }
  cuts.push_back(total);
  std::vector<Bounds> all;
  uint64_t begin = 0;
  for (const size_t index : draft.parameters) {
    const uint64_t elements = model.parameters[index].elements;
    // The host aligns the start of every parameter, so alignment is relative to that start.
    for (uint64_t& cut : cuts) {
      if (cut > begin && cut < begin + elements) cut = begin + (cut - begin) / step * step;
    }
    Bounds& bounds = all.emplace_back();
    for (const uint64_t cut : cuts)
      bounds.push_back(std::clamp(cut, begin, begin + elements) - begin);
    begin += elements;
  }
  return all;
}

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

Failure read_offload(const Options& options, const std::string& table, PlannedOffload* offload) {
  static constexpr db_place kPlaces[] = {DB_PLACE_STAY, DB_PLACE_HOST, DB_PLACE_DISK};
  const std::string device = table + ".device", path = table + ".nvme_path";
  const std::string pin = table + ".pin_memory", count = table + ".buffer_count";
  size_t word = 0;
  int64_t buffers = 0;
  Failure failure = read_word(options, device, {"none", "cpu", "nvme"}, &word);
  if (failure.ok()) failure = read_number(options, count, 1, kMaxBuffers, &buffers);
  if (!failure.ok()) return failure;
  // Without this check, an option that only another device reads would be ignored silently.
  const struct {
    const std::string& key;
    const char* device;
  } owners[] = {{path, "nvme"}, {count, "nvme"}, {pin, "cpu"}};
  for (const auto& owner : owners)
    if (options.given(owner.key) && options.string(device) != owner.device)
      return Failure::invalid("option '" + owner.key + "' is for " + device + " = \"" +
                              owner.device + "\", but that is '" + options.string(device) + "'");
  offload->place = kPlaces[word];
  offload->pinned = offload->place == DB_PLACE_HOST && options.boolean(pin);
  offload->folder = options.string(path);
  offload->buffers = static_cast<int32_t>(buffers);
  if (offload->place == DB_PLACE_DISK && offload->folder.empty())
    return Failure::invalid(device + " = \"nvme\" needs option '" + path +
                            "': a folder on the disk to offload to");
  return {};
}

}  // namespace db
