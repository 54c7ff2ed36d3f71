// Models larger than one device or than memory: loaded from checkpoints, placed by a device map on
// accelerators, in host memory or on disk, and run as if everything were in one place.
//
//   GPTJ model{nullptr};
//   {
//     coupler::EmptyWeights empty;
//     model = GPTJ(options);
//   }
//   auto placed = coupler::load_checkpoint_and_dispatch(
//       model, "sharded-gpt-j-6B", {.device_map = "auto", .no_split_module_classes =
//       {"GPTJBlock"}});
//   auto logits = model->forward(tokens);
//
// Modules are not changed and no hooks are added. An operation on a parameter brings the parameter
// to the device on which the operation runs, while the next ones are prefetched. The operation's
// other inputs are brought there, too, so inputs may be on any device; results are on the device on
// which the last layer ran.
// - On the CPU, weights are memory-mapped from their files (safetensors, .bin, an offload folder)
//   without a copy if dtypes match; the files must not be changed meanwhile.
// - On an accelerator, weights stored on the CPU or on disk are copied to it just before use and
//   released afterwards; the next units are prefetched through pinned memory on a separate stream.
// - Dispatched weights, on any device, cannot be written to: this is for inference.
//
// Functions here must be called by the thread that owns the model; any thread may then use the
// model. Errors are coupler::Error and name the tensor, the file and what to do. Errors in a
// checkpoint, map or budget are found before the model is touched; a disk that fails later leaves
// the model partly loaded.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <coupler/device_map.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace coupler {

// The effect of quantization on one weight.
struct QuantizedLayer {
  std::string name;           // of the weight
  double relative_error = 0;  // ||w - quantized|| / ||w||, Frobenius norms
  double max_error = 0;       // the largest |w - quantized|
  uint64_t bytes_before = 0;  // in the model's unquantized dtype
  uint64_t bytes_after = 0;   // including scales and zero points
};

// The effect of quantization on a model.
struct QuantizationReport {
  int bits = 8;                        // 8 or 4
  int64_t group_size = 0;              // with 4 bits; 0: one scale per output
  std::vector<QuantizedLayer> layers;  // largest relative error first
  bool reused = false;                 // some were read packed from an offload folder
};

// How weights are quantized.
struct QuantizeOptions {
  int bits = 8;  // or 4
  // With 4 bits, the number of inputs that share a scale: 32, 64, 128 or 256. Must divide the
  // number of inputs of every quantized layer. 8 bits use one scale per output.
  int64_t group_size = 64;
  // Layers that are not quantized: parts of a weight's dotted name, such as "lm_head" or
  // "layers.0.mlp". Each must match at least one.
  std::vector<std::string> skip;
  // Called once, when all weights are quantized.
  std::function<void(const QuantizationReport&)> report;
  // The program's own classes whose parameter "weight" is a linear layer's: [out, in] like
  // torch::nn::Linear, and [in, out] as in GPT-2. Names as in no_split_module_classes.
  std::vector<std::string> linear_classes;
  std::vector<std::string> transposed_classes;
};

}  // namespace coupler

namespace torch::nn {
class Module;
}

namespace coupler {

namespace big_model {
class DispatchedState;
}

// Owns the placement of a dispatched model. Movable. When it is destroyed, memory of accelerators
// and files is released, and using a parameter that is fetched on use throws.
class DispatchedModel {
 public:
  // Created by dispatch_model and the other functions here.
  explicit DispatchedModel(std::shared_ptr<big_model::DispatchedState> state)
      : state_(std::move(state)) {}

  // The device of each part of the model.
  const DeviceMap& device_map() const;

 private:
  std::shared_ptr<big_model::DispatchedState> state_;
};

// For load_checkpoint_in_model.
struct LoadOptions {
  // The folder to which weights placed on "disk" are written or in which they are referenced, for
  // dispatch_model. Required if the map places anything on "disk".
  std::string offload_folder;
  // The dtype to which floating-point tensors are converted; unset: the model's dtypes.
  std::optional<c10::ScalarType> dtype;
  // Whether tensors missing from the checkpoint or unknown to the model are errors. If false,
  // missing ones keep the values given by the model's constructor.
  bool strict = true;
  bool offload_buffers = false;
  // Accepted for compatibility with Accelerate; no effect, because a checkpoint is never in memory
  // twice.
  bool offload_state_dict = false;
  // Maps a tensor name of the checkpoint to its name in the model; an empty result skips the
  // tensor. Null: names are the same.
  std::function<std::string(const std::string& name)> rename;
};

// Loads the model's parameters and buffers from a checkpoint: a .safetensors file, a .bin, .pt or
// .pth file with a state dict of torch.save, an index of several files (in the current format or
// the older one that is only the weight map), a folder with any of these, a checkpoint of Coupler
// or Accelerate, an offload folder, or a model's name on the Hugging Face Hub, which is downloaded
// unless the Hugging Face cache has it. Without a map, loads into host memory: meta tensors are
// memory-mapped, tensors with values are overwritten in place. With a map, loads onto its devices;
// weights on "disk" go to offload_folder and stay on meta for dispatch_model.
void load_checkpoint_in_model(torch::nn::Module& model, const std::string& checkpoint,
                              const DeviceMap& device_map = {}, const LoadOptions& options = {});

// For dispatch_model.
struct DispatchOptions {
  // The device that runs weights stored on "cpu" and "disk". Unset: the lowest accelerator of the
  // map, or else the CPU.
  std::optional<c10::Device> main_device;
  // The folder of weights on disk: written if the model has values, otherwise read.
  std::string offload_folder;
  bool offload_buffers = false;
  // "cpu" bounds the resident memory of this process; see load_checkpoint_and_dispatch.
  MaxMemory max_memory;
  int prefetch = 2;  // units fetched ahead
  // Quantizes linear layers' weights to 8 or 4 bits (coupler/quantize.h). Weights on disk are
  // written to offload_folder in packed form. The model must then have values.
  std::optional<QuantizeOptions> quantize;
};

// Places a model that has values, or that load_checkpoint_in_model has loaded, as the map says.
[[nodiscard]] DispatchedModel dispatch_model(torch::nn::Module& model, const DeviceMap& device_map,
                                             const DispatchOptions& options = {});

// For load_checkpoint_and_dispatch: the fields of LoadOptions and DispatchOptions, and the map.
struct LoadAndDispatchOptions {
  // A map, or "auto", "balanced", "balanced_low_0", "sequential" or "optimal". An empty string
  // places everything on the CPU.
  std::variant<std::string, DeviceMap> device_map = std::string("auto");
  // How much each device may hold. For "cpu" this bounds the memory of this process: memory already
  // in use is subtracted first, and weights on disk are dropped from memory after use if they do
  // not fit next to the rest. If not even two consecutive units fit, loading fails at the start and
  // reports what is needed. Empty: the free memory.
  MaxMemory max_memory;
  std::vector<std::string> no_split_module_classes;
  // The folder for weights on disk that cannot be used from their files because dtypes differ.
  // Empty: they are converted for each use.
  std::string offload_folder;
  bool offload_buffers = false;
  std::optional<c10::ScalarType> dtype;
  bool strict = true;
  bool offload_state_dict = false;  // as in LoadOptions
  std::optional<c10::Device> main_device;
  int prefetch = 2;
  std::function<std::string(const std::string& name)> rename;  // as in LoadOptions
  // Quantizes linear layers' weights to 8 or 4 bits (coupler/quantize.h); they are stored and moved
  // in packed form. Those on "disk" are written to offload_folder once; a later run with the same
  // checkpoint and options reuses the file.
  std::optional<QuantizeOptions> quantize;
};

// Creates the map, loads the checkpoint (a file, an index, a folder or a name on the Hugging Face
// Hub) and dispatches the model. Throws Error naming what is missing, has another shape or does not
// fit.
[[nodiscard]] DispatchedModel load_checkpoint_and_dispatch(
    torch::nn::Module& model, const std::string& checkpoint,
    const LoadAndDispatchOptions& options = {});

// Keeps the whole model in host memory and fetches it to execution_device for use. If that is the
// CPU, the model stays as it is.
[[nodiscard]] DispatchedModel cpu_offload(torch::nn::Module& model, c10::Device execution_device,
                                          bool offload_buffers = false);

// Keeps the whole model in files of offload_folder and fetches it for use.
[[nodiscard]] DispatchedModel disk_offload(torch::nn::Module& model,
                                           const std::string& offload_folder,
                                           c10::Device execution_device = c10::kCPU,
                                           bool offload_buffers = false);

// Controls a model that stays on its device after use, until it is offloaded explicitly or by the
// next model in the chain. Movable.
class OffloadHook {
 public:
  // Created by cpu_offload_with_hook.
  explicit OffloadHook(std::shared_ptr<big_model::DispatchedState> state)
      : state_(std::move(state)) {}

  // Frees the device's memory; the next use fetches the model again. Throws Error(kUsage) while an
  // operation uses it.
  void offload() const;

 private:
  friend OffloadHook cpu_offload_with_hook(torch::nn::Module&, c10::Device, const OffloadHook*);
  std::shared_ptr<big_model::DispatchedState> state_;
};

// Keeps the model in host memory until it is used, then moves it to execution_device as a whole.
// `previous`, if given, is offloaded first, so models take turns on a device that holds only one of
// them. previous need not be kept.
[[nodiscard]] OffloadHook cpu_offload_with_hook(torch::nn::Module& model,
                                                c10::Device execution_device,
                                                const OffloadHook* previous = nullptr);

// The device map of a dispatched model. Throws Error(kUsage) if the model is not dispatched.
const DeviceMap& device_map(const torch::nn::Module& model);

// The same functions for module holders.
template <class Holder>
auto load_checkpoint_in_model(Holder& model, const std::string& checkpoint,
                              const DeviceMap& device_map = {}, const LoadOptions& options = {})
    -> decltype(load_checkpoint_in_model(*model, checkpoint, device_map, options)) {
  return load_checkpoint_in_model(*model, checkpoint, device_map, options);
}
template <class Holder>
auto dispatch_model(Holder& model, const DeviceMap& device_map, const DispatchOptions& options = {})
    -> decltype(dispatch_model(*model, device_map, options)) {
  return dispatch_model(*model, device_map, options);
}
template <class Holder>
auto load_checkpoint_and_dispatch(Holder& model, const std::string& checkpoint,
                                  const LoadAndDispatchOptions& options = {})
    -> decltype(load_checkpoint_and_dispatch(*model, checkpoint, options)) {
  return load_checkpoint_and_dispatch(*model, checkpoint, options);
}
template <class Holder>
auto cpu_offload(Holder& model, c10::Device execution_device, bool offload_buffers = false)
    -> decltype(cpu_offload(*model, execution_device, offload_buffers)) {
  return cpu_offload(*model, execution_device, offload_buffers);
}
template <class Holder>
auto disk_offload(Holder& model, const std::string& offload_folder,
                  c10::Device execution_device = c10::kCPU, bool offload_buffers = false)
    -> decltype(disk_offload(*model, offload_folder, execution_device, offload_buffers)) {
  return disk_offload(*model, offload_folder, execution_device, offload_buffers);
}
template <class Holder>
auto cpu_offload_with_hook(Holder& model, c10::Device execution_device,
                           const OffloadHook* previous = nullptr)
    -> decltype(cpu_offload_with_hook(*model, execution_device, previous)) {
  return cpu_offload_with_hook(*model, execution_device, previous);
}
template <class Holder>
auto device_map(Holder& model) -> decltype(device_map(*model)) {
  return device_map(*model);
}

}  // namespace coupler
