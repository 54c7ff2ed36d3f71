#include "estimate/step_log.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace coupler::estimate {
namespace {

using nlohmann::json;

json json_of(const LoggedModel& model) {
  json result = {{"name", model.name}, {"first_parameter", model.first_parameter}};
  for (const LoggedModule& module : model.modules) {
    result["modules"].push_back({module.name, module.type, module.parent});
  }
  for (const LoggedParameter& p : model.parameters) {
    result["parameters"].push_back(
        {p.name, p.module, p.sizes, p.dtype, p.element_size, p.trainable, p.in_memory});
  }
  return result;
}

LoggedModel model_of(const json& value) {
  LoggedModel model{.name = value.at("name"), .first_parameter = value.at("first_parameter")};
  for (const json& module : value.at("modules")) {
    model.modules.push_back({module.at(0), module.at(1), module.at(2)});
  }
  for (const json& p : value.at("parameters")) {
    model.parameters.push_back({p.at(0), p.at(1), p.at(2), p.at(3), p.at(4), p.at(5), p.at(6)});
  }
  return model;
}

}  // namespace

uint64_t LoggedParameter::numel() const {
  uint64_t result = 1;
  for (const uint64_t size : sizes) result *= size;
  return result;
}

uint64_t StepLog::parameter_count() const {
  uint64_t result = 0;
  for (const LoggedModel& model : models) result += model.parameters.size();
  return result;
}

const LoggedParameter& StepLog::parameter(uint64_t index) const {
  for (const LoggedModel& model : models) {
    if (index < model.first_parameter + model.parameters.size()) {
      return model.parameters[index - model.first_parameter];
    }
  }
  throw Error(ErrorCode::kInternal, fmt::format("the step log names parameter {}", index));
}

uint64_t StepLog::trainable_bytes() const {
  uint64_t result = 0;
  for (const LoggedModel& model : models) {
    for (const LoggedParameter& p : model.parameters) result += p.trainable ? p.bytes() : 0;
  }
  return result;
}

std::string write_step_log(const StepLog& log) {
  json result = {{"version", 1},
                 {"mixed_precision", log.mixed_precision},
                 {"activation_checkpointing", log.activation_checkpointing},
                 {"buffer_bytes", log.buffer_bytes},
                 {"base_bytes", log.base_bytes},
                 {"optimizer", log.optimizer},
                 {"optimizer_fused", log.optimizer_fused},
                 {"optimizer_factor", log.optimizer_factor},
                 {"initial", log.initial},
                 {"models", json::array()},
                 {"events", json::array()}};
  for (const LoggedModel& model : log.models) result["models"].push_back(json_of(model));
  json& events = result["events"];
  for (const StepEvent& event : log.events) {
    events.push_back({static_cast<int>(event.kind), event.index, event.storage, event.bytes});
  }
  return result.dump();
}

StepLog read_step_log(const std::string& text) {
  try {
    const json value = json::parse(text);
    if (value.at("version") != 1) throw std::runtime_error("another version of Coupler wrote it");
    StepLog log{.mixed_precision = value.at("mixed_precision"),
                .activation_checkpointing = value.at("activation_checkpointing"),
                .models = {},
                .buffer_bytes = value.at("buffer_bytes"),
                .base_bytes = value.at("base_bytes"),
                .optimizer = value.at("optimizer"),
                .optimizer_fused = value.at("optimizer_fused"),
                .optimizer_factor = value.at("optimizer_factor"),
                .initial = value.at("initial"),
                .events = {}};
    for (const json& model : value.at("models")) log.models.push_back(model_of(model));
    for (const json& e : value.at("events")) {
      log.events.push_back(
          {static_cast<StepEvent::Kind>(e.at(0).get<int>()), e.at(1), e.at(2), e.at(3)});
    }
    return log;
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kInternal,
                fmt::format("the report of a dry run cannot be read: {}", error.what()),
                {.hint = "use the coupler program that belongs to the program's libcoupler"});
  }
}

}  // namespace coupler::estimate
