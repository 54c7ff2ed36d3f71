// The intercept: one boxed fallback for a dispatch key that no kernel of LibTorch uses, set on
// every managed parameter. Views and saved copies inherit the key and share the storage, so
// whatever touches a parameter (forward, backward, double backward, TorchScript, inference mode,
// any thread) comes through here first; operations on other tensors do not. The fallback pins the
// units of its arguments, runs the operation, and unpins.
//
// DispatchKey::DeferredInit is the key: it stands above Autograd and Autocast, and LibTorch itself
// registers nothing for it. check_intercept() makes sure that this LibTorch agrees.
#pragma once

#include <ATen/core/Tensor.h>

#include "residency/unit.h"

namespace coupler {

// Where a unit says on which device operations on it run, what else they take is brought there, and
// what they give comes through here as well (travelling.h): a model may lie on several devices.

// Makes operations on the parameter come through the intercept. Its storage must be a home's.
void put_intercept(const at::Tensor& parameter);
bool has_intercept(const at::Tensor& parameter);

// A parameter of `sizes` and `type` whose storage is home's, for at::Tensor::set_data or
// put_value. home->storage is made here.
at::Tensor make_managed(Home& home, at::IntArrayRef sizes, at::ScalarType type);

// The home of a tensor's storage; null where it has none or is not managed.
Home* home_of(const at::Tensor& tensor);

// Runs an operation on a managed parameter and throws Error(kUnsupported) where the intercept did
// not see it: LibTorch's internals have changed. Once per process; cheap.
void check_intercept();

}  // namespace coupler
