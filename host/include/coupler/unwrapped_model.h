// UnwrappedModel: a prepared model's module with its full parameters while it is alive; see
// Accelerator::unwrap_model. Used by the training thread.
#pragma once

#include <coupler/summon.h>

#include <utility>

namespace coupler {

template <class Module>
class UnwrappedModel {
 public:
  // Created by Accelerator::unwrap_model. The module must outlive it.
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
