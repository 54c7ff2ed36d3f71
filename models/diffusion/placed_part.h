// PlacedPart: one model of a folder that diffusers wrote: its config.json, its weights, and when it
// is on the device. Used by one thread.
#pragma once

#include <coupler/big_model.h>
#include <coupler/empty_weights.h>
#include <coupler/error.h>
#include <coupler/model_config.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace coupler::diffusion {

struct PlaceOptions {
  c10::Device device = c10::kCPU;  // where it runs
  c10::ScalarType dtype = c10::kFloat;
  std::function<std::string(const std::string&)> rename;
};

// The weight file of a folder, or the index of several. Throws Error(kIo) if there is none.
std::string weights_of(const std::string& folder);

template <class Model>
class PlacedPart {
 public:
  PlacedPart(std::string folder, PlaceOptions options)
      : folder_(std::move(folder)),
        config_(ModelConfig::open(folder_)),
        weights_(weights_of(folder_)),
        options_(std::move(options)),
        model_(make()) {}

  // Its parameters have no values before load() and outside turn().
  Model& model() { return *model_; }

  // Keeps the weights in host memory and moves them to the device while the model runs.
  // previous: the hook of the model that is offloaded then.
  const OffloadHook& load(const OffloadHook* previous) {
    load_checkpoint_in_model(*model_, weights_, {},
                             {.dtype = options_.dtype, .rename = options_.rename});
    hook_ = cpu_offload_with_hook(*model_, options_.device, previous);
    return *hook_;
  }
  const std::optional<OffloadHook>& hook() const { return hook_; }

  // Runs `action`, which may use model(), with weights read from the files. bytes: the memory limit
  // of the whole process; 0: no limit.
  template <class Action>
  auto turn(uint64_t bytes, const Action& action) {
    LoadAndDispatchOptions load;
    load.device_map = DeviceMap{{"", "disk"}};
    load.main_device = options_.device;
    load.dtype = options_.dtype;
    load.rename = options_.rename;
    if (bytes > 0) load.max_memory.set(MapDevice::cpu(), bytes);
    // The model of an earlier turn has lost its values.
    model_ = make();
    const DispatchedModel placed = load_checkpoint_and_dispatch(*model_, weights_, load);
    return action();
  }

 private:
  std::shared_ptr<Model> make() const {
    const EmptyWeights empty;
    return std::make_shared<Model>(config_);
  }

  std::string folder_;
  ModelConfig config_;
  std::string weights_;
  PlaceOptions options_;
  std::shared_ptr<Model> model_;
  std::optional<OffloadHook> hook_;
};

}  // namespace coupler::diffusion
