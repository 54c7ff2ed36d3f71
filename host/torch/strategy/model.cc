#include "strategy/model.h"

#include <ATen/Functions.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>

#include <unordered_map>

#include "empty_weights/empty_weights.h"
#include "residency/intercept.h"
#include "residency/unit.h"
#include "tensors/tensor_text.h"

namespace coupler::strategy {
namespace {

class Describer {
 public:
  explicit Describer(Model& model) : model_(model) {}

  size_t add_module(std::string name, std::string type, int64_t parent) {
    model_.modules.push_back({std::move(name), std::move(type), parent});
    return model_.modules.size() - 1;
  }
  void add_parameter(size_t module, const std::string& name, const at::Tensor& tensor) {
    const std::string path = join(module, name);
    if (is_new(tensor, path)) model_.parameters.push_back({path, tensor, module});
  }
  void add_buffer(size_t module, const std::string& name, const at::Tensor& tensor) {
    const std::string path = join(module, name);
    if (is_new(tensor, path)) model_.buffers.emplace_back(path, tensor);
  }
  std::string join(size_t module, const std::string& name) const {
    const std::string& path = model_.modules[module].name;
    return path.empty() ? name : path + "." + name;
  }
  void finish() const {
    if (!model_.parameters.empty()) return;
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("the model '{}' has no parameters: there is nothing to prepare", model_.name),
        {.subject = model_.name,
         .hint = "register them with register_module and register_parameter"});
  }

 private:
  bool is_new(const at::Tensor& tensor, const std::string& path) {
    if (!tensor.defined()) return false;
    const auto [first, is_new] = seen_.emplace(tensor.unsafeGetTensorImpl(), path);
    if (is_new) {
      require_near(path, tensor);
    } else {
      model_.aliases.emplace_back(path, first->second);
    }
    return is_new;
  }
  void require_near(const std::string& name, const at::Tensor& tensor) const {
    if (tensor.device().is_cpu() || tensor.is_meta() || tensor.device() == model_.device) return;
    throw Error(ErrorCode::kUnsupported,
                fmt::format("'{}' is on {}, but this process trains on {}", name,
                            tensor.device().str(), model_.device.str()),
                {.subject = name,
                 .hint = "leave the model on the CPU: prepare moves it to training.device"});
  }

  Model& model_;
  std::unordered_map<const void*, std::string> seen_;
};

void walk(Describer& into, const torch::nn::Module& module, const std::string& path,
          int64_t parent) {
  const size_t self = into.add_module(path, module.name(), parent);
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    into.add_parameter(self, item.key(), item.value());
  }
  for (const auto& item : module.named_buffers(/*recurse=*/false)) {
    into.add_buffer(self, item.key(), item.value());
  }
  for (const auto& item : module.named_children()) {
    walk(into, *item.value(), into.join(self, item.key()), static_cast<int64_t>(self));
  }
}

void walk(Describer& into, const torch::jit::Module& module, const std::string& path,
          int64_t parent) {
  const size_t self = into.add_module(path, module.type()->name()->qualifiedName(), parent);
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    into.add_parameter(self, item.name, item.value);
  }
  for (const auto& item : module.named_buffers(/*recurse=*/false)) {
    into.add_buffer(self, item.name, item.value);
  }
  for (const auto& item : module.named_children()) {
    walk(into, item.value, into.join(self, item.name), static_cast<int64_t>(self));
  }
}

template <class Module>
Model describe_any(Module& module, std::string name, c10::Device device) {
  Model model;
  model.device = device;
  model.identity = identity_of(module);
  model.name = std::move(name);
  Describer describer(model);
  walk(describer, module, "", -1);
  describer.finish();
  return model;
}

}  // namespace

const void* identity_of(const torch::nn::Module& module) { return &module; }
const void* identity_of(const torch::jit::Module& module) { return module._ivalue().get(); }

Model describe(torch::nn::Module& module, c10::Device device) {
  Model model = describe_any(module, module.name(), device);
  model.keep = module.weak_from_this().lock();
  return model;
}

Model describe(const torch::jit::Module& module, c10::Device device) {
  Model model = describe_any(module, module.type()->name()->qualifiedName(), device);
  model.keep = std::make_shared<torch::jit::Module>(module);
  return model;
}

void set_fixed_aside(Model& model) {
  std::vector<ModelParameter> others;
  for (ModelParameter& parameter : model.parameters) {
    const auto* const managed = residency::managed_storage_of(parameter.tensor);
    if (managed == nullptr || !managed->unit->placed) {
      others.push_back(std::move(parameter));
      continue;
    }
    if (parameter.tensor.requires_grad()) {
      throw Error(ErrorCode::kUsage,
                  fmt::format("parameter '{}' requires gradients, but it is quantized or placed by "
                              "a device map, and so cannot be trained",
                              parameter.name),
                  {.subject = parameter.name,
                   .hint = "freeze it (set_requires_grad(false)) and train other parameters, such "
                           "as those that coupler::lora adds"});
    }
    model.fixed.emplace_back(parameter.name, parameter.tensor);
  }
  model.parameters = std::move(others);
}

ModelTypes types_of(const Model& model) {
  ModelTypes result;
  for (const ModelParameter& parameter : model.parameters) {
    const at::ScalarType type = parameter.tensor.scalar_type();
    result.stored.insert(type);
    result.computed.insert(type);
    if (parameter.tensor.requires_grad()) result.reduced.insert(type);
  }
  return result;
}

void move_to(const at::Tensor& variable, c10::Device device) {
  if (variable.device() == device) return;
  const at::Tensor gradient = variable.grad();
  if (gradient.defined()) variable.mutable_grad() = gradient.to(device);
  empty_weights::give_value(variable, variable.detach().to(device));
}

namespace {

std::string tensor_text(const at::Tensor& tensor) {
  return tensors::text_of(tensor) + (tensor.requires_grad() ? "" : ", frozen");
}

}  // namespace

comm::SharedSettings shared_settings_of(const Model& model) {
  comm::SharedSettings settings = {
      {"the number of parameters of the model", fmt::to_string(model.parameters.size())},
      {"the number of buffers of the model", fmt::to_string(model.buffers.size())}};
  for (const ModelParameter& parameter : model.parameters) {
    settings.emplace_back(fmt::format("parameter '{}' of the model", parameter.name),
                          tensor_text(parameter.tensor));
  }
  for (const auto& [name, buffer] : model.buffers) {
    settings.emplace_back(fmt::format("buffer '{}' of the model", name), tensor_text(buffer));
  }
  for (const auto& [name, fixed] : model.fixed) {
    settings.emplace_back(fmt::format("fixed parameter '{}' of the model", name),
                          tensor_text(fixed));
  }
  return settings;
}

double GradientNorm::power_of(const std::vector<at::Tensor>& tensors) const {
  double power = 0;
  std::vector<at::Tensor> filled;  // the largest element of none is not defined
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() > 0) filled.push_back(tensor);
  }
  residency::visit_in_groups(filled, [&](at::TensorList bunch) {
    std::vector<at::Tensor> norms = at::_foreach_norm(bunch, type);
    // On a device, reading the norms one by one would wait for each.
    if (!norms[0].is_cpu()) {
      for (at::Tensor& norm : norms) norm = norm.to(at::kDouble);
      norms = at::stack(norms).cpu().unbind();
    }
    for (const at::Tensor& norm : norms) {
      const double value = norm.item<double>();
      // A maximum, here or over ranks, may drop NaN.
      const bool dropped = is_maximum() && std::isnan(value);
      power = together(power, dropped ? type : power_of(value));
    }
  });
  return power;
}

void throw_not_finite(double norm, size_t parameter, const Model& model) {
  const bool known = parameter < model.parameters.size();
  // The powers of large finite gradients may overflow, too.
  const std::string where =
      known ? fmt::format("the gradient of parameter '{}' has infinite or NaN elements",
                          model.parameters[parameter].name)
            : "its powers overflow, although every element is finite";
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("clip_grad_norm: the norm of the gradients is {}: {}", norm, where),
              {.subject = known ? model.parameters[parameter].name : "",
               .hint = "check the loss and the inputs of this step; a lower learning rate or "
                       "removing bad samples usually helps"});
}

}  // namespace coupler::strategy
