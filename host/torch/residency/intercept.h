// The intercept: one boxed fallback for a dispatch key that no LibTorch kernel uses, set on every
// managed parameter. Views and saved copies inherit the key and share the storage, so every
// operation on a parameter (forward, backward, double backward, TorchScript, inference mode, any
// thread) comes through here first; operations on other tensors do not. The fallback pins the units
// of its arguments, runs the operation, and unpins.
//
// DispatchKey::DeferredInit is the key: it ranks above Autograd and Autocast, and LibTorch itself
// registers nothing for it. check_intercept() verifies this for the LibTorch in use.
#pragma once

#include <ATen/core/Tensor.h>

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

// Runs an operation on a managed parameter and throws Error(kUnsupported) if the intercept did not
// see it, i.e. if LibTorch's internals have changed. Runs once per process; cheap.
void check_intercept();

}  // namespace coupler::residency
