// Models larger than one device or than memory: loaded from checkpoints, put where a device map
// says (accelerators, the CPU's memory, a disk), and run as if all of it were in one place.
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
// No module is changed and no hook is added: an operation on a parameter brings it to where the
// operation runs, and next to be used is fetched meanwhile. What the operation takes beside is
// brought there, too, so inputs may be on any device; results are where the last layer ran.
// - On the CPU weights are used as they lie in their files (safetensors, .bin, an offload folder),
//   mapped, without a copy, where types agree; files must not be changed meanwhile.
// - On an accelerator what lies on the CPU or a disk is copied there just before its use, the next
//   units ahead through pinned memory and on a stream of their own, and given up after it.
// - Values on "cpu" or "disk", and on accelerators, cannot be written to: this is for inference.
//
// Every function here belongs to the thread that owns the model; the model may then be used by any
// thread. Errors are coupler::Error and name tensor, file and what to do. All that can be wrong
// with a checkpoint, a map or a budget is found before the model is touched; a disk that fails
// later leaves a part of it loaded.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <coupler/device_map.h>
#include <coupler/quantize_options.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace torch::nn {
class Module;
}

namespace coupler {

class DispatchedState;

// Keeps a dispatched model where it is. Movable. When it goes, parameters that were fetched for use
// have no values any more (using them throws), and accelerators' and files' memory is given back.
class DispatchedModel {
 public:
  // Made by dispatch_model and those above.
  explicit DispatchedModel(std::shared_ptr<DispatchedState> state) : state_(std::move(state)) {}

  // Where each part of the model is.
  const DeviceMap& device_map() const;

 private:
  std::shared_ptr<DispatchedState> state_;
};

// For load_checkpoint_in_model.
struct LoadOptions {
  // Where what the map puts on the disk is written, or named, for dispatch_model. Needed where the
  // map says "disk".
  std::string offload_folder;
  // What floating tensors become; unset: what the model has.
  std::optional<c10::ScalarType> dtype;
  // Whether tensors that are missing in the checkpoint or that the model does not have are errors.
  // Else those that are missing keep the values that the model's constructor gives.
  bool strict = true;
  bool offload_buffers = false;
  // Accelerate's word. Nothing of a checkpoint is in memory twice, so there is no state dict that
  // could be offloaded: either value does the same.
  bool offload_state_dict = false;
  // What a tensor of the checkpoint is called in the model; empty: it is passed over. Null: as in
  // the checkpoint.
  std::function<std::string(const std::string& name)> rename;
};

// Fills the model's parameters and buffers from a checkpoint: a .safetensors file, a .bin, .pt or
// .pth file of torch.save's state dicts, an index of several (of today, or the older one that is
// the map alone), a folder with any of these, a checkpoint of Coupler's or Accelerate's, or an
// offload folder. Without a map into host memory: what is on meta is mapped, what has values is
// overwritten in place. With a map onto its devices, the disk's into offload_folder; those stay on
// meta for dispatch_model.
void load_checkpoint_in_model(torch::nn::Module& model, const std::string& checkpoint,
                              const DeviceMap& device_map = {}, const LoadOptions& options = {});

// For dispatch_model.
struct DispatchOptions {
  // Where what lies on "cpu" and "disk" runs. Unset: the lowest accelerator of the map, else the
  // CPU.
  std::optional<c10::Device> main_device;
  // Where weights on the disk are: written there where the model has values, else read from there.
  std::string offload_folder;
  bool offload_buffers = false;
  // "cpu" bounds the resident memory of this process; see load_checkpoint_and_dispatch.
  MaxMemory max_memory;
  int prefetch = 2;  // units fetched ahead
  // Linear layers' weights to 8 or 4 bits (coupler/quantize.h). What lies on the disk is written to
  // offload_folder packed. The model must have values, then.
  std::optional<QuantizeOptions> quantize;
};

// Puts a model with values, or one that load_checkpoint_in_model has filled, where the map says.
[[nodiscard]] DispatchedModel dispatch_model(torch::nn::Module& model, const DeviceMap& device_map,
                                             const DispatchOptions& options = {});

// For load_checkpoint_and_dispatch: what LoadOptions and DispatchOptions hold, and the map.
struct LoadAndDispatchOptions {
  // A map, or "auto", "balanced", "balanced_low_0", "sequential" or "optimal". An empty text: all
  // on the CPU.
  std::variant<std::string, DeviceMap> device_map = std::string("auto");
  // What each device may hold. For "cpu" it is a promise about this process: what it holds already
  // is taken off first, what lies on the disk is dropped from memory after its use where it does
  // not fit beside the rest, and where even one unit and the next do not, loading fails at the
  // start and says what would be needed. Empty: what is free.
  MaxMemory max_memory;
  std::vector<std::string> no_split_module_classes;
  // Where weights on the disk go that cannot be used in their files, since their types differ.
  // Empty: those are converted for each use.
  std::string offload_folder;
  bool offload_buffers = false;
  std::optional<c10::ScalarType> dtype;
  bool strict = true;
  bool offload_state_dict = false;  // as LoadOptions has it
  std::optional<c10::Device> main_device;
  int prefetch = 2;
  std::function<std::string(const std::string& name)> rename;  // as LoadOptions has it
  // Linear layers' weights to 8 or 4 bits (coupler/quantize.h): packed is what lies and moves.
  // Where the map says "disk" they are written to offload_folder, once: a later run with the same
  // checkpoint and options uses the file.
  std::optional<QuantizeOptions> quantize;
};

// Makes the map, loads the checkpoint (a file, an index or a folder) and dispatches, in one. Throws
// Error naming what is missing, of another shape or without room.
[[nodiscard]] DispatchedModel load_checkpoint_and_dispatch(
    torch::nn::Module& model, const std::string& checkpoint,
    const LoadAndDispatchOptions& options = {});

// All of the model in host memory, fetched to execution_device for use. On the CPU it stays as it
// is.
[[nodiscard]] DispatchedModel cpu_offload(torch::nn::Module& model, c10::Device execution_device,
                                          bool offload_buffers = false);

// All of the model in files of offload_folder, fetched for use.
[[nodiscard]] DispatchedModel disk_offload(torch::nn::Module& model,
                                           const std::string& offload_folder,
                                           c10::Device execution_device = c10::kCPU,
                                           bool offload_buffers = false);

// A model that stays on its device once it was used, until it is offloaded or another model's turn
// comes. Movable.
class OffloadHook {
 public:
  // Made by cpu_offload_with_hook.
  explicit OffloadHook(std::shared_ptr<DispatchedState> state) : state_(std::move(state)) {}

  // Gives the device's memory back; the next use fetches the model anew. Throws Error(kUsage) while
  // an operation uses it.
  void offload() const;

 private:
  friend OffloadHook cpu_offload_with_hook(torch::nn::Module&, c10::Device, const OffloadHook*);
  std::shared_ptr<DispatchedState> state_;
};

// In host memory until it is used, then on execution_device as a whole. Before that `previous`,
// where it is given, is offloaded: models take turns on a device that holds one of them. previous
// need not be kept.
[[nodiscard]] OffloadHook cpu_offload_with_hook(torch::nn::Module& model,
                                                c10::Device execution_device,
                                                const OffloadHook* previous = nullptr);

// Of a model that is dispatched. Throws Error(kUsage) where it is not.
const DeviceMap& device_map(const torch::nn::Module& model);

// The same for holders.
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
