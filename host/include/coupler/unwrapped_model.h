// UnwrappedModel: a prepared model's module, its parameters whole while it lives; see
// Accelerator::unwrap_model. Used by the thread that trains.
#pragma once

#include <coupler/summon.h>

#include <utility>

namespace coupler {

template <class Module>
class UnwrappedModel {
 public:
  // Made by Accelerator::unwrap_model. The module outlives it.
  UnwrappedModel(Module& module, FullParameters parameters)
      : module_(&module), parameters_(std::move(parameters)) {}
  // The module.
  Module* operator->() const { return module_; }
  Module& operator*() const { return *module_; }

 private:
  Module* module_;
  FullParameters parameters_;
};

}  // namespace coupler
