// HostValue: the source of a model tensor's values: host memory, possibly of a mapped file, or a
// checkpoint that must be read and converted. Immutable; reading is [any-thread], but only one
// value at a time of the same checkpoint.
#pragma once

#include <ATen/core/Tensor.h>
#include <coupler/device_map.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "quantize/packed_weight.h"
#include "strategy/model.h"
#include "weights/weight_source.h"

namespace coupler::big_model {

struct HostValue {
  // Defined: the values, contiguous, of the requested dtype. Undefined: `weight` has them.
  at::Tensor tensor;
  // The tensor's place in a mapped file; without a file if it is not in one.
  weights::FilePlace place;
  const weights::WeightTensor* weight = nullptr;

  bool exists() const { return tensor.defined() || weight != nullptr; }
};

// From a tensor on the CPU that has values.
HostValue host_value(const at::Tensor& tensor);

// From a checkpoint's tensor, which must outlive the result. Used in place if it is contiguous and
// aligned in a file and has that dtype; checksums are compared first. Throws Error(kIo) for damage,
// kUnsupported for a dtype that LibTorch lacks.
HostValue host_value(const weights::WeightTensor& weight, at::ScalarType type);

// Writes all values to `destination`, which is contiguous, on any device and of any dtype: values
// are converted. Takes at most one chunk of extra memory. drop_pages: also drops the pages read
// from a mapped file, which otherwise stay resident. Throws Error(kIo).
void copy_value(const HostValue& value, const at::Tensor& destination, bool drop_pages = false);

// Elements [begin, begin + numel), row-major, of what a division gives a rank of a checkpoint's
// tensor: what the rank keeps of it.

// Reads them, without keeping them. Throws Error(kIo) for damage or a file that has become shorter,
// kUnsupported for a dtype that LibTorch lacks.
void check_range(const weights::WeightTensor& weight, int64_t begin, int64_t numel,
                 const sharding::Division& division = {});
// Writes as many as `destination` has to it, in row-major order; it may be on any device and of any
// layout and dtype: values are converted. Throws Error(kIo).
void copy_range(const weights::WeightTensor& weight, int64_t begin, const at::Tensor& destination,
                const sharding::Division& division = {});

// PlacedTensor: the placement of one parameter or buffer of a model: where its values come from,
// where they are kept, and where operations on it run. Plain data.
struct PlacedTensor {
  std::string name;
  at::Tensor variable;  // the model's own
  size_t module = 0;    // in Model::modules
  bool buffer = false;
  at::ScalarType type = at::kFloat;  // the requested dtype
  MapDevice stored_on;
  c10::Device runs_on = c10::kCPU;
  HostValue value;
  // The packed form of a quantized weight. `value` is its packed bytes, once they are made.
  std::shared_ptr<const quantization::PackedWeight> packed;

  // Whether it stays on the device on which it runs.
  bool stays() const {
    return stored_on.is_accelerator() || (stored_on.is_cpu() && runs_on.is_cpu());
  }
  // As kept: packed, if it is.
  size_t bytes() const {
    if (packed != nullptr) return packed->bytes();
    return static_cast<size_t>(variable.numel()) * c10::elementSize(type);
  }
};

struct PlaceRules {
  // The device on which tensors on the CPU or a disk run. Unset: the lowest accelerator of the map,
  // else the CPU.
  std::optional<c10::Device> main_device;
  bool offload_buffers = false;         // else buffers stay where they run
  std::optional<at::ScalarType> dtype;  // of floating-point tensors; unset: the model's
};

// All tensors of a model, without values. The map must cover them (check_device_map). Throws
// Error(kInvalidArgument) for an accelerator that LibTorch does not see.
std::vector<PlacedTensor> place_tensors(const strategy::Model& model, const DeviceMap& map,
                                        const PlaceRules& rules);

}  // namespace coupler::big_model
