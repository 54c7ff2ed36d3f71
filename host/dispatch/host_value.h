// HostValue: where the values of one of a model's tensors are to be had: in host memory, be it that
// of a mapped file, or from a checkpoint that has to be read and converted. Immutable; reading is
// [any-thread], one at a time for all that come from one checkpoint.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "weights/weight_source.h"

namespace coupler {

struct HostValue {
  // Defined: the values, of the type that is wanted, contiguous. Undefined: `weight` has them.
  at::Tensor tensor;
  // Where the tensor lies in a mapped file; no file where it does not.
  FilePlace place;
  const WeightTensor* weight = nullptr;

  uint64_t bytes() const { return tensor.defined() ? tensor.nbytes() : 0; }
};

// Of a tensor that has values, on the CPU.
HostValue host_value(const at::Tensor& tensor);

// Of a checkpoint's, which must outlive it. In place where it lies in one piece in a file and is of
// that type; checksums are compared first. Throws Error(kIo) for damage, kUnsupported for a type
// that LibTorch lacks.
HostValue host_value(const WeightTensor& weight, at::ScalarType type);

// Writes all of it to `destination`, which is contiguous, on any device, and of any type: values
// are converted. At most a chunk of it takes memory beside; drop_pages: of a mapped file, too,
// since what was read of one stays resident else. Throws Error(kIo).
void copy_value(const HostValue& value, const at::Tensor& destination, bool drop_pages = false);

}  // namespace coupler
