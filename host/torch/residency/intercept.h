// The intercept: one boxed fallback for a dispatch key that no LibTorch kernel uses, set on every
// managed parameter. Views and saved copies inherit the key and share the storage, so every
// operation on a parameter (forward, backward, double backward, TorchScript, inference mode, any
// thread) comes through here first; operations on other tensors do not. The fallback pins the units
// of its arguments, runs the operation, and unpins.
//
// DispatchKey::DeferredInit is the key: it ranks above Autograd and Autocast, and LibTorch itself
// registers nothing for it. check_intercept() verifies this for the LibTorch in use.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "residency/unit.h"

namespace coupler::residency {

// A model may be spread over several devices. If a unit names the device its operations run on,
// their other arguments are moved there and their results are intercepted as well.

// Routes operations on the parameter through the intercept. Its storage must be managed.
void put_intercept(const at::Tensor& parameter);
bool has_intercept(const at::Tensor& parameter);

// Returns a parameter of `sizes` and `type` whose storage is managed's, for at::Tensor::set_data or
// put_value. Creates managed.storage.
at::Tensor make_managed(ManagedStorage& managed, at::IntArrayRef sizes, at::ScalarType type);

// The managed storage of a tensor; null if it has no storage or is not managed.
ManagedStorage* managed_storage_of(const at::Tensor& tensor);

// Replaces each defined tensor of a boxed argument, alone or in a list, by change(tensor).
template <class Change>
void change_tensors(c10::IValue& value, const Change& change) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) value = change(value.toTensor());
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    // Copies of an IValue share their list.
    const c10::List<c10::IValue> list = value.toList().copy();
    for (size_t i = 0; i < list.size(); ++i) {
      const c10::IValue element = list.get(i);
      if (element.isTensor() && element.toTensor().defined())
        list.set(i, change(element.toTensor()));
    }
    value = list;
  }
}

// Runs an operation on a managed parameter and throws Error(kUnsupported) if the intercept did not
// see it, i.e. if LibTorch's internals have changed. Runs once per process; cheap.
void check_intercept();

}  // namespace coupler::residency
