#include "estimate/plan.h"

#include <coupler/error.h>
#include <coupler/sharding.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "comm/flight_recorder.h"
#include "comm/raw_communicator.h"
#include "comm/state.h"
#include "plugin/plugin.h"
#include "sharding/model_description.h"

namespace coupler::estimate {
namespace {

// The description refers to the model's own strings.
void describe(const LoggedModel& model, sharding::ModelDescription& description) {
  for (const LoggedModule& module : model.modules) {
    description.add_module(module.name, module.type, module.parent);
  }
  for (const LoggedParameter& p : model.parameters) {
    description.add_parameter(p.name, p.module, p.sizes, p.dtype, p.trainable);
  }
}

// One rank's communicator of a sharding plugin, over a dummy base.
class MadeUpRank {
 public:
  MadeUpRank(const DistributedBackend& table, const comm::PluginOptions& options, int rank,
             int world_size)
      : table_(table),
        base_{sizeof(db_communicator), &plugin::made_up_functions(), rank, world_size} {
    db_base base = {.struct_size = sizeof(db_base), .role = "world", .communicator = &base_};
    const db_base* const bases[] = {&base};
    const db_communicator_params params = {
        .struct_size = sizeof(db_communicator_params),
        .host = nullptr,
        .store = nullptr,
        .options = options.data(),
        .option_count = options.size(),
        .rank = rank,
        .size = world_size,
        .local_rank = rank,
        .local_size = world_size,
        .device_index = -1,
        .memory = DB_MEMORY_HOST,
        .default_timeout_ns = 1'000'000'000,
        .interface_name = nullptr,
        .bases = bases,
        .base_count = 1,
    };
    comm::ErrorBuffer error;
    const db_status status = table.create(&params, &communicator_, error.get());
    if (status != DB_OK) {
      communicator_ = nullptr;
      throw comm::make_error(status, error, fmt::format("an estimate for {} processes", world_size),
                             table.name);
    }
  }
  ~MadeUpRank() {
    if (communicator_ != nullptr) communicator_->functions->destroy(communicator_);
  }
  MadeUpRank(const MadeUpRank&) = delete;
  MadeUpRank& operator=(const MadeUpRank&) = delete;

  using Plan = std::unique_ptr<const db_plan, decltype(db_sharding::release)>;
  Plan plan(const db_model& model) const {
    const auto* sharding = static_cast<const db_sharding*>(table_.get_extension(DB_SHARDING));
    const db_plan* plan = nullptr;
    comm::ErrorBuffer error;
    const db_status status = sharding->plan(communicator_, &model, &plan, error.get());
    if (status != DB_OK) throw comm::make_error(status, error, "its sharding plan", table_.name);
    return Plan(plan, sharding->release);
  }

 private:
  const DistributedBackend& table_;
  db_communicator base_;
  db_communicator* communicator_ = nullptr;
};

EstimateUnit take(const db_unit& unit, const LoggedModel& model, size_t ranks) {
  EstimateUnit result;
  result.name = unit.name;
  result.keep = unit.keep;
  result.whole_gradients = unit.gradients == DB_GRADIENTS_WHOLE;
  for (uint64_t i = 0; i < unit.parameter_count; ++i) {
    const db_unit_parameter& parameter = *unit.parameters[i];
    result.parameters.push_back(parameter.parameter);
    result.bounds.emplace_back(parameter.bounds, parameter.bounds + ranks + 1);
  }
  const LoggedParameter& first = model.parameters.at(result.parameters.at(0));
  const db_dtype own = first.dtype;
  const db_dtype compute = unit.compute_dtype != 0 ? unit.compute_dtype : own;
  const db_dtype reduce = unit.reduce_dtype != 0 ? unit.reduce_dtype : compute;
  result.element = first.element_size;
  result.compute_element = comm::dtype_size(compute);
  result.reduce_element = comm::dtype_size(reduce);
  result.converts = compute != own || unit.output_dtype != 0;
  result.reduces_converted = reduce != own;
  return result;
}

bool has_sharding(const plugin::Plugin& plugin) {
  const DistributedBackend& table = plugin.table();
  return table.get_extension != nullptr && table.get_extension(DB_SHARDING) != nullptr;
}

int buffers_of(const db_offload* offload) {
  return offload != nullptr && offload->place == DB_PLACE_DISK ? std::max(offload->buffers, 0) : -1;
}

}  // namespace

bool shards_models(const config::BackendConfig& config) {
  return has_sharding(plugin::Plugin::load(config));
}

EstimatePlan plan_for(const config::BackendConfig& config, const LoggedModel& model, int rank,
                      int world_size) {
  EstimatePlan result{
      .world_size = world_size, .rank = rank, .group_rank = rank, .group_size = world_size};
  const plugin::Plugin plugin = plugin::Plugin::load(config);
  const comm::PluginOptions options(plugin.table(), config);
  if (!has_sharding(plugin)) return result;
  result.can_shard = true;
  sharding::ModelDescription description;
  describe(model, description);
  std::vector<int> groups;
  for (int other = 0; other < world_size; ++other) {
    const MadeUpRank made_up(plugin.table(), options, other, world_size);
    groups.push_back(made_up.plan(description.model())->group);
  }
  const int own = groups[static_cast<size_t>(rank)];
  result.group_size = static_cast<int>(std::count(groups.begin(), groups.end(), own));
  result.group_rank = static_cast<int>(std::count(groups.begin(), groups.begin() + rank, own));
  std::vector<bool> in_unit(model.parameters.size());
  const MadeUpRank made_up(plugin.table(), options, rank, world_size);
  const MadeUpRank::Plan plan = made_up.plan(description.model());
  result.prefetch = std::max(plan->prefetch, 0);
  result.live_elements = plan->live_elements;
  result.overlap = plan->overlap == 1;
  // NOLINTNEXTLINE(bugprone-sizeof-expression): the member is a pointer
  if (DB_HAS(plan.get(), db_plan, offload_parameters)) {
    result.optimizer_buffers = buffers_of(plan->offload_optimizer);
    result.parameter_buffers = buffers_of(plan->offload_parameters);
  }
  for (uint64_t i = 0; i < plan->unit_count; ++i) {
    result.units.push_back(take(*plan->units[i], model, static_cast<size_t>(result.group_size)));
    for (const size_t p : result.units.back().parameters) in_unit[p] = true;
  }
  for (size_t p = 0; p < in_unit.size(); ++p) {
    if (!in_unit[p]) result.replicated.push_back(p);
  }
  return result;
}

}  // namespace coupler::estimate
