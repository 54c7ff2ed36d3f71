#include <ATen/core/grad_mode.h>
#include <coupler/detail/object_kinds.h>
#include <coupler/error.h>
#include <coupler/state_dict.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <variant>

#include "checkpoint/state_values.h"
#include "tensors/tensor_text.h"

namespace coupler {

void StateDict::refuse(const std::string& name, const char* kind) const {
  std::string there;
  for (const auto& [other, tensor] : tensors_) there += (there.empty() ? "" : ", ") + other;
  for (const auto& [other, value] : values_) there += (there.empty() ? "" : ", ") + other;
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("the saved object has no {} '{}'; it has: {}", kind, name,
                  there.empty() ? "nothing" : there),
      {.subject = name, .hint = "load an object that the same version of the program saved"});
}

const StateDict::Value& StateDict::value(const std::string& name, const char* kind) const {
  const auto found = values_.find(name);
  if (found == values_.end()) refuse(name, kind);
  return found->second;
}

const at::Tensor& StateDict::tensor(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) refuse(name, "tensor");
  return found->second;
}

int64_t StateDict::integer(const std::string& name) const {
  const auto* number = std::get_if<int64_t>(&value(name, "integer"));
  if (number == nullptr) refuse(name, "integer");
  return *number;
}

double StateDict::number(const std::string& name) const {
  const Value& found = value(name, "number");
  if (const auto* integer = std::get_if<int64_t>(&found)) return static_cast<double>(*integer);
  const auto* number = std::get_if<double>(&found);
  if (number == nullptr) refuse(name, "number");
  return *number;
}

bool StateDict::boolean(const std::string& name) const {
  const auto* truth = std::get_if<bool>(&value(name, "boolean"));
  if (truth == nullptr) refuse(name, "boolean");
  return *truth;
}

const std::string& StateDict::text(const std::string& name) const {
  const auto* text = std::get_if<std::string>(&value(name, "string"));
  if (text == nullptr) refuse(name, "string");
  return *text;
}

StateDict load_state_dict(const std::string& path) {
  const SafeTensors file = SafeTensors::open(path);
  StateDict state;
  const auto values = file.metadata().find(checkpoint::kValuesKey);
  if (values != file.metadata().end()) {
    try {
      checkpoint::set_values(state, values->second);
    } catch (const nlohmann::json::exception& problem) {
      throw Error(ErrorCode::kIo,
                  fmt::format("{}: cannot read its values ({}): {}", path, checkpoint::kValuesKey,
                              problem.what()),
                  {.subject = path, .hint = "save the file again with Accelerator::save"});
    }
  }
  for (const std::string& name : file.names()) state.set(name, file.tensor(name));
  return state;
}

}  // namespace coupler

namespace coupler::detail {
namespace {

void load_tensor(const StateDict& state, const std::string& name, at::Tensor tensor) {
  const at::Tensor& saved = state.tensor(name);
  if (saved.sizes() != tensor.sizes() || saved.scalar_type() != tensor.scalar_type()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("tensor '{}' of a registered module is {}, but the program's is {}",
                            name, tensors::text_of(saved), tensors::text_of(tensor)),
                {.subject = name, .hint = "register the module that was saved"});
  }
  const at::NoGradGuard no_grad;
  tensor.copy_(saved);
}

}  // namespace

void save_module(const torch::nn::Module& module, StateDict& state) {
  for (const auto& item : module.named_parameters()) state.set(item.key(), item.value());
  for (const auto& item : module.named_buffers()) state.set(item.key(), item.value());
}

void load_module(torch::nn::Module& module, const StateDict& state) {
  for (auto& item : module.named_parameters()) load_tensor(state, item.key(), item.value());
  for (auto& item : module.named_buffers()) load_tensor(state, item.key(), item.value());
}

}  // namespace coupler::detail
