#include "sharding_plugin.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <stdexcept>

namespace db {
namespace {

db_option to_option(const Given& given) {
  db_option option{};
  option.struct_size = sizeof(option);
  option.key = given.key;
  if (const auto* text = std::get_if<const char*>(&given.value)) {
    option.type = DB_OPTION_STRING;
    option.string = *text;
  } else if (const auto* number = std::get_if<int64_t>(&given.value)) {
    option.type = DB_OPTION_I64;
    option.i64 = *number;
  } else if (const auto* boolean = std::get_if<bool>(&given.value)) {
    option.type = DB_OPTION_BOOL;
    option.boolean = *boolean ? 1 : 0;
  } else {
    option.type = DB_OPTION_F64;
    option.f64 = std::get<double>(given.value);
  }
  return option;
}

Plan::Offload copy(const db_offload* from) {
  if (from == nullptr) return {};
  EXPECT_EQ(from->struct_size, sizeof(*from));
  EXPECT_NE(from->place, DB_PLACE_STAY);
  return {from->place, from->pinned == 1, from->folder == nullptr ? "" : from->folder,
          from->buffers};
}

Plan copy(const db_plan& plan, int32_t ranks) {
  Plan result{};
  result.group = plan.group;
  result.prefetch = plan.prefetch;
  result.live_elements = plan.live_elements;
  result.reduce_bytes = plan.reduce_bytes;
  result.overlap = plan.overlap;
  result.optimizer = copy(plan.offload_optimizer);
  result.parameters = copy(plan.offload_parameters);
  for (uint64_t i = 0; i < plan.unit_count; ++i) {
    const db_unit& from = *plan.units[i];
    Plan::Unit& unit = result.units.emplace_back();
    unit = {from.name,        {}, from.keep, from.gradients, from.compute_dtype, from.reduce_dtype,
            from.output_dtype};
    for (uint64_t j = 0; j < from.parameter_count; ++j) {
      const db_unit_parameter& parameter = *from.parameters[j];
      EXPECT_EQ(parameter.struct_size, sizeof(parameter));
      unit.parameters.push_back(
          {parameter.parameter, {parameter.bounds, parameter.bounds + ranks + 1}});
    }
    EXPECT_EQ(from.struct_size, sizeof(from));
  }
  EXPECT_EQ(plan.struct_size, sizeof(plan));
  return result;
}

}  // namespace

ShardingPlugin::ShardingPlugin(const std::string& name) {
  const std::string path =
      std::string(COUPLER_BINARY_DIR) + "/lib/coupler/libcoupler_" + name + ".so";
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  const auto entry = reinterpret_cast<db_entry_function>(dlsym(library, DB_ENTRY_SYMBOL));
  table_ = entry();
  sharding_ = static_cast<const db_sharding*>(table_->get_extension(DB_SHARDING));
}

db_status ShardingPlugin::create(const Where& where, const Givens& options, db_communicator* base,
                                 db_communicator** result, std::string* message) const {
  std::vector<db_option> values;
  for (const Given& given : options) values.push_back(to_option(given));
  std::vector<const db_option*> pointers;
  for (const db_option& value : values) pointers.push_back(&value);
  const db_base world = {sizeof(world), "world", base};
  const db_base* const bases[] = {&world};
  db_communicator_params params{};
  params.struct_size = sizeof(params);
  params.options = pointers.data();
  params.option_count = pointers.size();
  params.rank = where.rank;
  params.size = where.size;
  params.local_rank = where.local_rank;
  params.local_size = where.local_size;
  params.device_index = -1;
  params.memory = DB_MEMORY_HOST;
  params.default_timeout_ns = 1'000'000'000;
  params.bases = bases;
  params.base_count = base != nullptr ? 1 : 0;
  char buffer[1024] = "";
  db_error error = {sizeof(error), 0, 0, 0, 0, buffer, sizeof(buffer)};
  const db_status status = table_->create(&params, result, &error);
  *message = buffer;
  return status;
}

Answer ShardingPlugin::plan(TestModel& model, const Where& where, const Givens& options,
                            int32_t ranks) const {
  Answer answer;
  FakeBase base(where.rank, where.size);
  db_communicator* communicator = nullptr;
  answer.status = create(where, options, base.handle(), &communicator, &answer.message);
  if (answer.status != DB_OK) {
    EXPECT_EQ(communicator, nullptr);
    return answer;
  }
  char buffer[1024] = "";
  db_error error = {sizeof(error), 0, 0, 0, 0, buffer, sizeof(buffer)};
  const db_plan* plan = nullptr;
  answer.status = sharding_->plan(communicator, model.describe(), &plan, &error);
  answer.message = buffer;
  EXPECT_EQ(answer.status == DB_OK, plan != nullptr);
  if (plan != nullptr) {
    // The plan outlives the communicator.
    communicator->functions->destroy(communicator);
    communicator = nullptr;
    answer.plan = copy(*plan, ranks);
    sharding_->release(plan);
  }
  if (communicator != nullptr) communicator->functions->destroy(communicator);
  return answer;
}

std::string ShardingPlugin::refusal(TestModel& model, const Where& where,
                                    const Givens& options) const {
  const Answer answer = plan(model, where, options);
  EXPECT_EQ(answer.status, DB_ERR_INVALID_ARGUMENT);
  return answer.message;
}

std::string render(const Plan& plan, TestModel& model) {
  static constexpr const char* kKeep[] = {"?", "always", "step", "use"};
  static constexpr const char* kGradients[] = {"?", "whole", "shard"};
  std::string result;
  for (const Plan::Unit& unit : plan.units) {
    result += unit.name + " " + kKeep[unit.keep] + " " + kGradients[unit.gradients] + ":";
    for (const Plan::Parameter& parameter : unit.parameters) {
      result += &parameter == unit.parameters.data() ? " " : ", ";
      result += model.parameters()[parameter.index].name + std::string(" [");
      for (const uint64_t bound : parameter.bounds)
        result += (result.back() == '[' ? "" : " ") + std::to_string(bound);
      result += "]";
    }
    result += "\n";
  }
  return result;
}

}  // namespace db
