#include "estimate/step_log.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace coupler::estimate {

using nlohmann::json;

constexpr int kVersion = 4;

// What a log has many of is an array; nlohmann::json finds these functions by their names.
static void to_json(json& value, const LoggedModule& module) {
  value = json::array({module.name, module.type, module.parent});
}
static void from_json(const json& value, LoggedModule& module) {
  module = {value.at(0), value.at(1), value.at(2)};
}
static void to_json(json& value, const LoggedParameter& p) {
  value = {p.name,      p.module,    p.sizes,       p.dtype,    p.element_size,
           p.trainable, p.in_memory, p.whole_numel, p.in_chunks};
}
static void from_json(const json& value, LoggedParameter& p) {
  p = {value.at(0), value.at(1), value.at(2), value.at(3), value.at(4),
       value.at(5), value.at(6), value.at(7), value.at(8)};
}
static void to_json(json& value, const StepEvent& event) {
  value = {static_cast<int>(event.kind), event.index, event.storage, event.bytes};
}
static void from_json(const json& value, StepEvent& event) {
  event = {static_cast<StepEvent::Kind>(value.at(0).get<int>()), value.at(1), value.at(2),
           value.at(3)};
}
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LoggedModel, name, first_parameter, modules, parameters)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LoggedPipeline, stages, stage, micro_batches, virtual_stages)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StepLog, mixed_precision, activation_checkpointing, models,
                                   buffer_bytes, base_bytes, optimizer, optimizer_fused,
                                   optimizer_factor, experts, initial, events, mesh, pipeline)

uint64_t LoggedParameter::numel() const {
  uint64_t result = 1;
  for (const uint64_t size : sizes) result *= size;
  return result;
}

void LoggedParameter::leave_to_others() {
  if (!divided()) whole_numel = numel();
  sizes = {0};
}

bool LoggedModel::divided() const {
  return std::any_of(parameters.begin(), parameters.end(),
                     [](const LoggedParameter& p) { return p.divided(); });
}

uint64_t StepLog::parameter_count() const {
  uint64_t result = 0;
  for (const LoggedModel& model : models) result += model.parameters.size();
  return result;
}

uint64_t StepLog::trainable_bytes() const {
  uint64_t result = 0;
  for (const LoggedModel& model : models) {
    for (const LoggedParameter& p : model.parameters) result += p.trainable ? p.bytes() : 0;
  }
  return result;
}

std::string write_step_log(const StepLog& log) {
  json result = log;
  result["version"] = kVersion;
  return result.dump();
}

StepLog read_step_log(const std::string& text) {
  try {
    const json value = json::parse(text);
    if (value.at("version") != kVersion)
      throw std::runtime_error("another version of Coupler wrote it");
    return value.get<StepLog>();
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kInternal,
                fmt::format("the report of a dry run cannot be read: {}", error.what()),
                {.hint = "use the coupler program that belongs to the program's libcoupler"});
  }
}

}  // namespace coupler::estimate
