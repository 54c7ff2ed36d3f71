// Type traits by which Accelerator::prepare distinguishes objects.
#pragma once

#include <coupler/data_loader.h>
#include <coupler/optimizer.h>
#include <coupler/state_dict.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace torch::jit {
struct Module;
}

namespace coupler::detail {

template <class T>
struct is_shared_module : std::false_type {};
template <class M>
struct is_shared_module<std::shared_ptr<M>> : std::is_base_of<torch::nn::Module, M> {};
template <class T>
struct is_data_loader : std::false_type {};
template <class Dataset, class CollateFn>
struct is_data_loader<DataLoader<Dataset, CollateFn>> : std::true_type {};

template <class T>
inline constexpr bool is_module_holder_v =
    std::is_base_of_v<torch::detail::ModuleHolderIndicator, T>;
template <class T>
inline constexpr bool is_script_v = std::is_same_v<T, torch::jit::Module>;
template <class T>
inline constexpr bool is_model_v = is_module_holder_v<T> || is_shared_module<T>::value ||
                                   std::is_base_of_v<torch::nn::Module, T> || is_script_v<T>;

// The module in a holder or pointer; a module, TorchScript's included, itself.
template <class Model>
auto& module_of(Model& model) {
  if constexpr (std::is_base_of_v<torch::nn::Module, Model> || is_script_v<std::decay_t<Model>>) {
    return model;
  } else {
    return *model;
  }
}

// A model passed to a call: its identity, and the module itself unless it is TorchScript.
struct ModelRef {
  const void* identity = nullptr;
  const torch::nn::Module* module = nullptr;
};
template <class Model>
ModelRef reference_to(Model& model) {
  if constexpr (is_script_v<std::decay_t<Model>>) {
    return {model._ivalue().get(), nullptr};
  } else {
    const torch::nn::Module& module = module_of(model);
    return {&module, &module};
  }
}
template <class T>
inline constexpr bool is_optimizer_v = std::is_base_of_v<torch::optim::Optimizer, T>;
template <class T>
inline constexpr bool is_torch_scheduler_v =
    std::is_base_of_v<torch::optim::LRScheduler, T> ||
    std::is_base_of_v<torch::optim::ReduceLROnPlateauScheduler, T>;
template <class T>
inline constexpr bool is_schedule_v =
    std::is_same_v<T, Schedule> || std::is_same_v<T, TorchSchedule>;

// Type-erased wrappers for objects passed to Accelerator::register_for_checkpointing.

// Save and load parameters and buffers by name.
void save_module(const torch::nn::Module& module, StateDict& state);
void load_module(torch::nn::Module& module, const StateDict& state);

template <class Object>
class StatefulObject final : public Stateful {
 public:
  explicit StatefulObject(Object& object) : object_(object) {}
  void save(StateDict& state) const override {
    if constexpr (kIsModule) {
      save_module(module_of(object_), state);
    } else {
      std::as_const(object_).save(state);
    }
  }
  void load(const StateDict& state) override {
    if constexpr (kIsModule) {
      load_module(module_of(object_), state);
    } else {
      object_.load(state);
    }
  }

 private:
  static constexpr bool kIsModule = is_model_v<Object> && !is_script_v<Object>;
  Object& object_;
};

template <class Object>
std::unique_ptr<Stateful> registered(Object& object) {
  static_assert(!std::is_const_v<Object>, "an object that is loaded into must not be const");
  return std::make_unique<StatefulObject<Object>>(object);
}

}  // namespace coupler::detail
