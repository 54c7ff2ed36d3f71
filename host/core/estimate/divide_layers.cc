#include "estimate/divide_layers.h"

#include <vector>

namespace coupler::estimate {

void divide_layers(LoggedModel& model, const sharding::TensorPlans& plans, int ranks) {
  sharding::PlannedModel planned;
  for (const LoggedModule& module : model.modules)
    planned.modules.push_back({module.name, module.type});
  for (const LoggedParameter& p : model.parameters)
    planned.parameters.push_back({p.name, {p.sizes.begin(), p.sizes.end()}, p.trainable});
  const sharding::ModelDivision division = sharding::divide_model(planned, plans, ranks, 0);
  for (const auto& [index, how] : division.parameters) {
    LoggedParameter& parameter = model.parameters[index];
    parameter.whole_numel = parameter.numel();
    const std::vector<int64_t> part = how.part_sizes();
    parameter.sizes.assign(part.begin(), part.end());
  }
}

}  // namespace coupler::estimate
