#include <ATen/DeviceAccelerator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <coupler/big_model.h>
#include <coupler/error.h>
#include <coupler/quantize.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <utility>

#include "big_model/dispatched_state.h"
#include "big_model/held_bytes.h"
#include "big_model/host_value.h"
#include "big_model/load_weights.h"
#include "big_model/quantize_tensors.h"
#include "empty_weights/empty_weights.h"
#include "quantize/choose_layers.h"
#include "residency/parameter_hooks.h"
#include "strategy/model.h"

namespace coupler {
namespace {

// Of a model's values, kept alive with them; null: nothing to keep.
using Sources = std::vector<std::shared_ptr<const weights::WeightSource>>;

DispatchedModel dispatch(strategy::Model model, DeviceMap map,
                         std::vector<big_model::PlacedTensor> tensors, Sources sources,
                         const big_model::DispatchRules& rules) {
  return DispatchedModel(std::make_shared<big_model::DispatchedState>(
      std::move(model), std::move(map), std::move(tensors), std::move(sources), rules));
}

big_model::DispatchRules rules_for(const MaxMemory& memory, int prefetch) {
  return {.prefetch = prefetch,
          .max_resident_bytes = memory.of(MapDevice::cpu()).value_or(0),
          .keep = false,
          .on_first = nullptr};
}

// The name in NumPy and Accelerate: "float16".
std::string dtype_name(std::optional<c10::ScalarType> type) {
  if (!type) return "";
  return std::string(c10::getDtypeNames(*type).first);
}

// The model may not take what the process already uses.
MaxMemory without_own(MaxMemory memory) {
  if (const auto cpu = memory.of(MapDevice::cpu())) {
    const uint64_t own = big_model::held_bytes();
    memory.set(MapDevice::cpu(), *cpu > own ? *cpu - own : 0);
  }
  return memory;
}

DeviceMap map_for(const torch::nn::Module& module, const strategy::Model& model,
                  const LoadAndDispatchOptions& options) {
  if (const auto* const map = std::get_if<DeviceMap>(&options.device_map)) return *map;
  const auto& mode = std::get<std::string>(options.device_map);
  if (mode.empty()) return {{"", "cpu"}};
  DeviceMapOptions wanted;
  wanted.mode = mode;
  wanted.max_memory = without_own(options.max_memory);
  wanted.no_split_module_classes = options.no_split_module_classes;
  wanted.dtype = dtype_name(options.dtype);
  wanted.offload_buffers = options.offload_buffers;
  if (options.quantize) {
    const std::string type = options.quantize->bits == 4 ? "int4" : "int8";
    for (const quantization::ChosenLayer& layer :
         quantization::choose_layers(model, *options.quantize))
      wanted.special_dtypes.emplace(model.parameters[layer.parameter].name, type);
  }
  return infer_auto_device_map(module, wanted);
}

// Loads into the tensor's own memory, uses that of the file, or allocates memory on its device.
void load_tensor(const big_model::PlacedTensor& tensor) {
  const at::Tensor& variable = tensor.variable;
  const big_model::HostValue& value = tensor.value;
  const bool fits = !variable.is_meta() && variable.scalar_type() == tensor.type &&
                    variable.device() == tensor.runs_on && variable.is_contiguous();
  if (fits) {
    big_model::copy_value(value, variable.detach());
    return;
  }
  // Buffers are written to: running statistics must belong to the model alone.
  if (value.place.file != nullptr && tensor.runs_on.is_cpu() && !tensor.buffer) {
    // Read on first use: if the model is sharded, each rank reads only its part.
    empty_weights::give_value(variable, value.tensor);
    return;
  }
  const at::Tensor own =
      at::empty(variable.sizes(), at::TensorOptions(tensor.type).device(tensor.runs_on));
  big_model::copy_value(value, own);
  empty_weights::give_value(variable, own);
}

}  // namespace

void load_checkpoint_in_model(torch::nn::Module& module, const std::string& checkpoint,
                              const DeviceMap& device_map, const LoadOptions& options) {
  const at::NoGradGuard no_grad;
  const strategy::Model model = strategy::describe(module);
  const bool everywhere = device_map.entries().empty();
  const DeviceMap map = everywhere ? DeviceMap{{"", "cpu"}} : device_map;
  check_device_map(module, map);
  std::vector<big_model::PlacedTensor> tensors =
      big_model::place_tensors(model, map,
                               {.main_device = std::nullopt,
                                .offload_buffers = options.offload_buffers,
                                .dtype = options.dtype});
  const auto source = take_values(model, tensors, checkpoint, options.strict, options.rename);
  big_model::require_values(tensors);
  const auto offloaded = offload_to(options.offload_folder, tensors, /*only_foreign=*/false);
  for (const big_model::PlacedTensor& tensor : tensors) {
    if (!tensor.stored_on.is_disk()) load_tensor(tensor);
  }
  residency::restore_hooks();
}

DispatchedModel dispatch_model(torch::nn::Module& module, const DeviceMap& device_map,
                               const DispatchOptions& options) {
  strategy::Model model = strategy::describe(module);
  check_device_map(module, device_map);
  std::vector<big_model::PlacedTensor> tensors =
      big_model::place_tensors(model, device_map,
                               {.main_device = options.main_device,
                                .offload_buffers = options.offload_buffers,
                                .dtype = std::nullopt});
  Sources sources;
  if (options.quantize) big_model::choose_packed(model, *options.quantize, tensors);
  big_model::take_own_values(tensors);
  if (options.quantize) {
    big_model::require_values(tensors);
    sources.push_back(big_model::pack_tensors(*options.quantize, options.offload_folder, tensors));
  }
  sources.push_back(offload_to(options.offload_folder, tensors, /*only_foreign=*/true));
  if (!options.offload_folder.empty())
    sources.push_back(big_model::take_offloaded(options.offload_folder, tensors));
  return dispatch(std::move(model), device_map, std::move(tensors), std::move(sources),
                  rules_for(options.max_memory, options.prefetch));
}

DispatchedModel load_checkpoint_and_dispatch(torch::nn::Module& module,
                                             const std::string& checkpoint,
                                             const LoadAndDispatchOptions& options) {
  strategy::Model model = strategy::describe(module);
  DeviceMap map = map_for(module, model, options);
  check_device_map(module, map);
  std::vector<big_model::PlacedTensor> tensors =
      big_model::place_tensors(model, map,
                               {.main_device = options.main_device,
                                .offload_buffers = options.offload_buffers,
                                .dtype = options.dtype});
  if (options.quantize) big_model::choose_packed(model, *options.quantize, tensors);
  Sources sources = {take_values(model, tensors, checkpoint, options.strict, options.rename)};
  big_model::require_values(tensors);
  if (options.quantize)
    sources.push_back(big_model::pack_tensors(*options.quantize, options.offload_folder, tensors));
  if (!options.offload_folder.empty())
    sources.push_back(offload_to(options.offload_folder, tensors, /*only_foreign=*/true));
  return dispatch(std::move(model), std::move(map), std::move(tensors), std::move(sources),
                  rules_for(options.max_memory, options.prefetch));
}

DispatchedModel quantize(torch::nn::Module& module, const QuantizeOptions& options) {
  DispatchOptions dispatch;
  dispatch.quantize = options;
  return dispatch_model(module, {{"", "cpu"}}, dispatch);
}

DispatchedModel cpu_offload(torch::nn::Module& model, c10::Device execution_device,
                            bool offload_buffers) {
  return dispatch_model(
      model, {{"", "cpu"}},
      {.main_device = execution_device, .offload_folder = {}, .offload_buffers = offload_buffers});
}

DispatchedModel disk_offload(torch::nn::Module& model, const std::string& offload_folder,
                             c10::Device execution_device, bool offload_buffers) {
  return dispatch_model(model, {{"", "disk"}},
                        {.main_device = execution_device,
                         .offload_folder = offload_folder,
                         .offload_buffers = offload_buffers});
}

OffloadHook cpu_offload_with_hook(torch::nn::Module& module, c10::Device execution_device,
                                  const OffloadHook* previous) {
  strategy::Model model = strategy::describe(module);
  const DeviceMap map{{"", "cpu"}};
  std::vector<big_model::PlacedTensor> tensors = big_model::place_tensors(
      model, map,
      {.main_device = execution_device, .offload_buffers = true, .dtype = std::nullopt});
  big_model::take_own_values(tensors);
  big_model::DispatchRules rules{
      .prefetch = 2, .max_resident_bytes = 0, .keep = true, .on_first = nullptr};
  if (previous != nullptr) {
    rules.on_first = [before = std::weak_ptr(previous->state_)] {
      if (const auto state = before.lock()) state->release();
    };
  }
  return OffloadHook(std::make_shared<big_model::DispatchedState>(
      std::move(model), map, std::move(tensors), Sources{}, rules));
}

const DeviceMap& DispatchedModel::device_map() const { return state_->map(); }

void OffloadHook::offload() const { state_->release(); }

const DeviceMap& device_map(const torch::nn::Module& model) {
  const big_model::DispatchedState* const state =
      big_model::DispatchedState::of(strategy::identity_of(model));
  if (state != nullptr) return state->map();
  throw Error(ErrorCode::kUsage, fmt::format("the model '{}' is not dispatched", model.name()),
              {.subject = model.name(),
               .hint = "call dispatch_model or load_checkpoint_and_dispatch first"});
}

}  // namespace coupler
