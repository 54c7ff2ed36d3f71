#include "activations/activation_checkpoint.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/Functions.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <coupler/activation_checkpoint.h>
#include <coupler/autocast.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/custom_class.h>

#include <algorithm>

#include "activations/activation_offload.h"
#include "device/device_memory.h"
#include "precision/precision.h"
#include "strategy/gradient_hooks.h"
#include "tensors/divided_values.h"
#include "tensors/replaced_attention.h"
#include "tensors/replaced_dropout.h"

namespace coupler::activations {

RandomState::RandomState() {
  const std::optional<c10::DeviceType> type = at::getAccelerator();
  if (!type) return;
  device_ = c10::impl::VirtualGuardImpl(*type).getDevice();
  std::optional<at::Generator> generator = device::device_generator(*device_);
  if (!generator) return;
  const std::lock_guard lock(generator->mutex());
  on_device_ = generator->get_state();
}

void RandomState::restore() const {
  empty_weights::write_generator(cpu_);
  if (!on_device_.defined()) return;
  at::Generator generator = *device::device_generator(*device_);
  const std::lock_guard lock(generator.mutex());
  generator.set_state(on_device_);
}

}  // namespace coupler::activations

namespace coupler::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The properties of a tensor that must be the same in both runs.
struct Form {
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  bool operator==(const Form&) const = default;
};
Form tensor_form(const at::Tensor& tensor) { return {tensor.scalar_type(), tensor.sizes().vec()}; }

[[noreturn]] void refuse_checkpointed(ErrorCode code, const std::string& problem,
                                      const char* hint) {
  throw Error(code, "activation_checkpoint: " + problem,
              {.subject = "activation_checkpoint", .hint = hint});
}

// An input that is in host memory between forward and backward.
struct Away {
  size_t input = 0;
  activations::VersionMark version;
  std::vector<int64_t> shape;
};

// One call in forward, with what the second call in backward needs, except for the inputs.
struct SavedPart : torch::CustomClassHolder {
  variable_list compute(const variable_list& inputs) const {
    variable_list results = function(inputs);
    for (size_t i = 0; i < results.size(); ++i) {
      if (!results[i].defined())
        refuse_checkpointed(ErrorCode::kInvalidArgument,
                            fmt::format("result {} of the function is an undefined tensor", i),
                            "return a std::optional if there may be no tensor");
    }
    return results;
  }

  TensorFunction function;
  bool offloads = false;
  const activations::RandomState random;
  AutocastSettings autocast = precision::autocast_now();
  const std::shared_ptr<tensors::AttentionReplacement> attention = tensors::replaced_attention();
  const std::shared_ptr<const tensors::PartOfTokens> tokens = tensors::part_of_tokens();
  const std::shared_ptr<const tensors::DividedValues> divided = tensors::divided_values();
  std::vector<bool> wants_gradient;  // of the inputs
  std::vector<Form> outputs;
  std::shared_ptr<activations::OffloadedTensors> offloaded;  // null: none
  std::vector<Away> away;                                    // by index in `offloaded`
};

// Offloads inputs and returns those that stay; the others are undefined.
variable_list offload(SavedPart& part, variable_list inputs) {
  activations::ActivationOffload& rules = activations::ActivationOffload::of_process();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!rules.moves(inputs[i])) continue;
    if (part.offloaded == nullptr) part.offloaded = activations::OffloadedTensors::make();
    part.offloaded->add(inputs[i]);
    part.away.push_back({i, activations::VersionMark(inputs[i]), inputs[i].sizes().vec()});
    inputs[i] = at::Tensor();
  }
  const bool all_on_cpu = std::all_of(inputs.begin(), inputs.end(), [](const at::Tensor& input) {
    return input.defined() && input.is_cpu();
  });
  if (all_on_cpu && !inputs.empty()) rules.log_nothing_moves();
  return inputs;
}

void bring_back(const SavedPart& part, variable_list& inputs) {
  if (part.offloaded == nullptr) return;
  for (const Away& away : part.away) {
    if (!away.version.changed()) continue;
    refuse_checkpointed(
        ErrorCode::kUsage,
        fmt::format("backward needs an input of shape [{}] as it was in forward, but an "
                    "in-place operation has changed it since",
                    fmt::join(away.shape, ", ")),
        "use the operation that returns a new tensor");
  }
  variable_list back = part.offloaded->bring_back();
  for (size_t i = 0; i < back.size(); ++i) inputs[part.away[i].input] = std::move(back[i]);
  if (!torch::autograd::get_current_graph_task_keep_graph()) part.offloaded->forget();
}

void check_outputs(const SavedPart& part, const variable_list& outputs) {
  if (outputs.size() != part.outputs.size())
    refuse_checkpointed(
        ErrorCode::kInvalidArgument,
        fmt::format("the function returned {} tensors in forward and {} in backward",
                    part.outputs.size(), outputs.size()),
        "make it compute the same both times");
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Form now = tensor_form(outputs[i]), before = part.outputs[i];
    if (now == before) continue;
    refuse_checkpointed(
        ErrorCode::kInvalidArgument,
        fmt::format("result {} of the function was {} [{}] in forward and is {} [{}] in backward",
                    i, c10::toString(before.dtype), fmt::join(before.shape, ", "),
                    c10::toString(now.dtype), fmt::join(now.shape, ", ")),
        "make it compute the same both times: does it depend on something that changes?");
  }
}

// Repeats the computation with its graph, and runs backward through that.
variable_list gradients_of(const SavedPart& part, const variable_list& saved,
                           const variable_list& gradients) {
  variable_list inputs;
  for (size_t i = 0; i < saved.size(); ++i)
    inputs.push_back(saved[i].detach().set_requires_grad(part.wants_gradient[i]));
  variable_list outputs;
  {
    const activations::RandomGuard after;
    part.random.restore();
    const AutocastScope autocast(part.autocast);
    const tensors::AttentionScope attention(part.attention);
    const tensors::PartOfTokensScope tokens(part.tokens);
    const tensors::DividedValuesScope divided(part.divided);
    const at::AutoGradMode recording(true);
    outputs = part.compute(inputs);
  }
  check_outputs(part, outputs);
  variable_list roots, of_roots;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].requires_grad() || !gradients[i].defined()) continue;
    roots.push_back(outputs[i]);
    of_roots.push_back(gradients[i]);
  }
  if (!roots.empty()) {
    const strategy::NestedBackward nested;
    torch::autograd::backward(roots, of_roots);
  }
  variable_list result;
  for (const at::Tensor& input : inputs) result.push_back(input.grad());
  return result;
}

class Checkpointed : public torch::autograd::Function<Checkpointed> {
 public:
  // The last input is an empty tensor that requires a gradient, so that results require one even if
  // only parameters are trained.
  static variable_list forward(AutogradContext* context, const c10::intrusive_ptr<SavedPart>& part,
                               at::TensorList inputs) {
    const variable_list own(inputs.begin(), inputs.end() - 1);
    context->set_materialize_grads(false);
    context->saved_data[kPart] = c10::IValue::make_capsule(part);
    context->save_for_backward(part->offloads ? offload(*part, own) : own);
    for (const at::Tensor& input : own) part->wants_gradient.push_back(input.requires_grad());
    variable_list outputs, without;
    {
      const AutocastScope autocast(part->autocast);
      outputs = part->compute(own);
    }
    for (const at::Tensor& output : outputs) {
      part->outputs.push_back(tensor_form(output));
      if (!at::isFloatingType(output.scalar_type()) && !at::isComplexType(output.scalar_type()))
        without.push_back(output);
    }
    context->mark_non_differentiable(without);
    return outputs;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    if (at::GradMode::is_enabled())
      refuse_checkpointed(
          ErrorCode::kUnsupported, "second-order gradients are not supported",
          "call backward without create_graph, or leave this part out of checkpointing");
    if (!torch::autograd::Engine::get_default_engine().is_checkpoint_valid())
      refuse_checkpointed(ErrorCode::kUnsupported,
                          "torch::autograd::grad and backward with inputs are not supported",
                          "call backward, which computes gradients of all parameters");
    const auto part =
        c10::static_intrusive_pointer_cast<SavedPart>(context->saved_data.at(kPart).toCapsule());
    variable_list inputs = context->get_saved_variables();
    bring_back(*part, inputs);
    variable_list result = gradients_of(*part, inputs, gradients);
    result.insert(result.begin(), at::Tensor());  // for the part
    result.emplace_back();                        // for the empty tensor
    return result;
  }

 private:
  static constexpr const char* kPart = "part";
};

}  // namespace

std::vector<at::Tensor> activation_checkpoint(const ActivationCheckpointOptions& options,
                                              TensorFunction function,
                                              const std::vector<at::Tensor>& inputs) {
  if (!at::GradMode::is_enabled()) return function(inputs);
  // The graph must not see undefined inputs.
  std::vector<bool> defined;
  variable_list own;
  for (const at::Tensor& input : inputs) {
    defined.push_back(input.defined());
    if (input.defined()) own.push_back(input);
  }
  const auto part = c10::make_intrusive<SavedPart>();
  part->offloads =
      options.offload_to_cpu.value_or(activations::ActivationOffload::of_process().is_default());
  part->function = [function = std::move(function), defined](const variable_list& given) {
    variable_list all(defined.size());
    auto next = given.begin();
    for (size_t i = 0; i < all.size(); ++i) {
      if (defined[i]) all[i] = *next++;
    }
    return function(all);
  };
  own.push_back(at::empty({0}, at::kFloat).set_requires_grad(true));
  return Checkpointed::apply(part, at::TensorList(own));
}

}  // namespace coupler::detail
