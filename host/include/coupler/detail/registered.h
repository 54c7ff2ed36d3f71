// Type-erased wrappers for objects passed to Accelerator::register_for_checkpointing. Internal to
// accelerator.h; not included by users.
#pragma once

#include <coupler/detail/object_kinds.h>
#include <coupler/state_dict.h>

#include <memory>
#include <type_traits>

namespace coupler::detail {

// Save and load parameters and buffers by name.
void save_module(const torch::nn::Module& module, StateDict& state);
void load_module(torch::nn::Module& module, const StateDict& state);

template <class Object>
class RegisteredObject final : public Registered {
 public:
  explicit RegisteredObject(Object& object) : object_(object) {}
  void save(StateDict& state) const override {
    if constexpr (std::is_base_of_v<torch::nn::Module, Object>) {
      save_module(object_, state);
    } else if constexpr (is_module_holder_v<Object> || is_shared_module<Object>::value) {
      save_module(*object_, state);
    } else {
      const Object& object = object_;
      object.save(state);
    }
  }
  void load(const StateDict& state) override {
    if constexpr (std::is_base_of_v<torch::nn::Module, Object>) {
      load_module(object_, state);
    } else if constexpr (is_module_holder_v<Object> || is_shared_module<Object>::value) {
      load_module(*object_, state);
    } else {
      object_.load(state);
    }
  }

 private:
  Object& object_;
};

template <class Object>
std::unique_ptr<Registered> registered(Object& object) {
  static_assert(!std::is_const_v<Object>, "an object that is loaded into must not be const");
  return std::make_unique<RegisteredObject<Object>>(object);
}

}  // namespace coupler::detail
