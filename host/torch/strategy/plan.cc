#include "strategy/plan.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>

#include "comm/flight_recorder.h"
#include "sharding/model_description.h"
#include "tensors/tensor_ops.h"

namespace coupler::strategy {
namespace {

// The description borrows the model's names.
void describe_model(const Model& model, sharding::ModelDescription& description) {
  for (const ModelModule& module : model.modules) {
    description.add_module(module.name, module.type, module.parent);
  }
  for (const ModelParameter& parameter : model.parameters) {
    const at::Tensor& tensor = parameter.tensor;
    description.add_parameter(parameter.name, parameter.module,
                              {tensor.sizes().begin(), tensor.sizes().end()},
                              tensors::to_db_dtype(tensor.scalar_type()), tensor.requires_grad());
  }
}

class Checker {
 public:
  Checker(const comm::Communicator& comm, const Model& model) : comm_(comm), model_(model) {}

  [[noreturn]] void refuse(const std::string& what, const std::string& subject) const {
    throw Error(
        ErrorCode::kPlugin,
        fmt::format("the sharding plan of backend '{}' cannot be used: {}", comm_.backend(), what),
        {.subject = subject, .hint = "this is a bug in that backend: report it there"});
  }

  at::ScalarType type_of(db_dtype asked, at::ScalarType otherwise, const std::string& unit) const {
    if (asked == 0) return otherwise;
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
      if (tensors::to_db_dtype(type) == asked) return type;
    }
    refuse(fmt::format("unit '{}' names the type {}, which cannot be computed in", unit,
                       comm::dtype_name(asked)),
           unit);
  }

  PlannedUnit take(const db_unit& unit, size_t ranks) {
    PlannedUnit result;
    result.name = unit.name;
    result.keep = unit.keep;
    result.gradients = unit.gradients;
    if (unit.keep < DB_KEEP_ALWAYS || unit.keep > DB_KEEP_USE ||
        unit.gradients < DB_GRADIENTS_WHOLE || unit.gradients > DB_GRADIENTS_SHARD) {
      refuse(fmt::format("unit '{}' has keep {} and gradients {}", unit.name, unit.keep,
                         unit.gradients),
             unit.name);
    }
    if (unit.parameter_count == 0) {
      refuse(fmt::format("unit '{}' has no parameters", unit.name), unit.name);
    }
    for (uint64_t i = 0; i < unit.parameter_count; ++i) {
      result.parameters.push_back(take(*unit.parameters[i], unit.name, ranks));
    }
    result.type = model_.parameters[result.parameters[0].index].tensor.scalar_type();
    for (const PlannedParameter& parameter : result.parameters) {
      const ModelParameter& known = model_.parameters[parameter.index];
      if (known.tensor.scalar_type() == result.type) continue;
      refuse(fmt::format("unit '{}' joins parameters of different types; '{}' is {}", unit.name,
                         known.name, toString(known.tensor.scalar_type())),
             known.name);
    }
    result.compute_type = result.reduce_type = result.type;
    if (!c10::isFloatingType(result.type)) return result;
    result.compute_type = type_of(unit.compute_dtype, result.type, result.name);
    result.reduce_type = type_of(unit.reduce_dtype, result.compute_type, result.name);
    if (unit.output_dtype != 0) {
      result.output_type = type_of(unit.output_dtype, result.type, result.name);
    }
    return result;
  }

  std::optional<residency::OffloadPlace> take(const db_offload* offload, const char* what,
                                              c10::Device device) const {
    if (offload == nullptr || offload->place == DB_PLACE_STAY) return std::nullopt;
    if (offload->place == DB_PLACE_HOST) {
      if (device.is_cpu()) return std::nullopt;  // it is already there
      return residency::OffloadPlace{.pinned = offload->pinned != 0};
    }
    if (offload->place != DB_PLACE_DISK || offload->folder == nullptr ||
        offload->folder[0] == '\0' || offload->buffers < 0) {
      refuse(
          fmt::format("it offloads the {} to place {} with {} buffers and {}", what, offload->place,
                      offload->buffers, offload->folder == nullptr ? "no folder" : "a folder"),
          what);
    }
    return residency::OffloadPlace{.folder = offload->folder, .buffers = offload->buffers};
  }

  std::vector<size_t> others() const {
    std::vector<size_t> result;
    for (size_t i = 0; i < model_.parameters.size(); ++i) {
      if (owner_.count(i) == 0) result.push_back(i);
    }
    return result;
  }

 private:
  PlannedParameter take(const db_unit_parameter& parameter, const std::string& unit, size_t ranks) {
    if (parameter.parameter >= model_.parameters.size()) {
      refuse(fmt::format("unit '{}' names parameter number {} of {}", unit, parameter.parameter,
                         model_.parameters.size()),
             unit);
    }
    const ModelParameter& known = model_.parameters[parameter.parameter];
    const auto [other, is_new] = owner_.try_emplace(parameter.parameter, unit);
    if (!is_new) {
      refuse(fmt::format("units overlap: parameter '{}' is in '{}' and in '{}'", known.name,
                         other->second, unit),
             known.name);
    }
    PlannedParameter result;
    result.index = parameter.parameter;
    result.bounds.assign(parameter.bounds, parameter.bounds + ranks + 1);
    if (!std::is_sorted(result.bounds.begin(), result.bounds.end()) || result.bounds[0] != 0 ||
        result.bounds.back() != static_cast<uint64_t>(known.tensor.numel())) {
      refuse(fmt::format("the bounds [{}] do not divide the {} elements of parameter '{}' among {} "
                         "ranks",
                         fmt::join(result.bounds, ", "), known.tensor.numel(), known.name, ranks),
             known.name);
    }
    return result;
  }

  const comm::Communicator& comm_;
  const Model& model_;
  std::map<size_t, std::string> owner_;  // the unit of each parameter
};

// The number of ranks that share this rank's copy. Collective.
int size_of_group(comm::Communicator& comm, int group, const Checker& checker) {
  const at::Tensor mine = at::full({1}, group, at::kInt);
  const at::Tensor all = at::empty({comm.size()}, at::kInt);
  comm.run(tensors::all_gather_op(mine, all));
  std::map<int, int> sizes;
  for (int rank = 0; rank < comm.size(); ++rank) ++sizes[all[rank].item<int>()];
  for (const auto& [other, size] : sizes) {
    if (size == sizes[group]) continue;
    checker.refuse(
        fmt::format("group {} has {} ranks and group {} has {}", group, sizes[group], other, size),
        "group");
  }
  return sizes[group];
}

std::string unit_text(const PlannedUnit& unit, const Model& model) {
  std::string text = fmt::format("keep {} gradients {} in {} and {}", unit.keep, unit.gradients,
                                 toString(unit.compute_type), toString(unit.reduce_type));
  for (const PlannedParameter& parameter : unit.parameters) {
    const ModelParameter& known = model.parameters[parameter.index];
    text += fmt::format("; {} [{}] {} at {}", known.name, fmt::join(known.tensor.sizes(), ", "),
                        toString(known.tensor.scalar_type()), fmt::join(parameter.bounds, " "));
  }
  return text;
}

}  // namespace

ShardPlan ask_plan(comm::Communicator& comm, const Model& model) {
  sharding::ModelDescription description;
  describe_model(model, description);
  Checker checker(comm, model);
  ShardPlan result;
  comm.plan_shards(description.model(), [&](const db_plan& plan) {
    result.group = plan.group;
    result.group_size = size_of_group(comm, plan.group, checker);
    result.prefetch = std::max(plan.prefetch, 0);
    result.live_elements = plan.live_elements;
    result.reduce_bytes = plan.reduce_bytes;
    // A reduction that overlaps with backward keeps one more unit in memory and, on one machine,
    // competes for the same processors. So it does so only if the plan requests it.
    result.overlap = plan.overlap == 1;
    if (DB_HAS(&plan, db_plan, offload_parameters)) {
      result.offload_optimizer =
          checker.take(plan.offload_optimizer, "optimizer's state", model.device);
      result.offload_parameters = checker.take(plan.offload_parameters, "parameters", model.device);
    }
    for (uint64_t i = 0; i < plan.unit_count; ++i) {
      result.units.push_back(checker.take(*plan.units[i], static_cast<size_t>(result.group_size)));
    }
  });
  result.replicated = checker.others();
  comm::SharedSettings settings = {
      {"the number of parameters of the model", fmt::to_string(model.parameters.size())},
      {"the number of units of the model", fmt::to_string(result.units.size())}};
  for (const PlannedUnit& unit : result.units) {
    settings.emplace_back(fmt::format("unit '{}' of the model", unit.name), unit_text(unit, model));
  }
  comm.verify(settings);
  return result;
}

}  // namespace coupler::strategy
