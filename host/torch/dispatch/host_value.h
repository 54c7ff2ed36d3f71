// HostValue: the source of a model tensor's values: host memory, possibly of a mapped file, or a
// checkpoint that must be read and converted. Immutable; reading is [any-thread], but only one
// value at a time of the same checkpoint.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "weights/weight_source.h"

namespace coupler {

struct HostValue {
  // Defined: the values, contiguous, of the requested dtype. Undefined: `weight` has them.
  at::Tensor tensor;
  // The tensor's place in a mapped file; without a file if it is not in one.
  FilePlace place;
  const WeightTensor* weight = nullptr;

  uint64_t bytes() const { return tensor.defined() ? tensor.nbytes() : 0; }
};

// From a tensor on the CPU that has values.
HostValue host_value(const at::Tensor& tensor);

// From a checkpoint's tensor, which must outlive the result. Used in place if it is contiguous and
// aligned in a file and has that dtype; checksums are compared first. Throws Error(kIo) for damage,
// kUnsupported for a dtype that LibTorch lacks.
HostValue host_value(const WeightTensor& weight, at::ScalarType type);

// Writes all values to `destination`, which is contiguous, on any device and of any dtype: values
// are converted. Takes at most one chunk of extra memory. drop_pages: also drops the pages read
// from a mapped file, which otherwise stay resident. Throws Error(kIo).
void copy_value(const HostValue& value, const at::Tensor& destination, bool drop_pages = false);

}  // namespace coupler
