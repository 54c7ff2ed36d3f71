// From what a dataset's get_batch returns to the batch a training loop gets. Pure, any thread.
// Behind data_loader.h; not included by users.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/data/example.h>

#include <type_traits>
#include <utility>
#include <vector>

namespace coupler::detail {

// One tensor of equally shaped ones along a new first dimension. Throws Error(kInvalidArgument)
// naming the first two samples of the batch whose shapes differ.
at::Tensor stack(const std::vector<at::Tensor>& samples);

inline at::Tensor to_device(at::Tensor tensor, at::Device device) {
  if (!tensor.defined() || tensor.device() == device) return tensor;
  return tensor.to(device, /*non_blocking=*/true);
}

// A batch's type, and how it is made, by the type get_batch returns.
template <class Returned>
struct Collate {
  using Batch = Returned;
  static Batch make(Returned returned, at::Device) { return returned; }
};

template <>
struct Collate<at::Tensor> {
  using Batch = at::Tensor;
  static Batch make(at::Tensor tensor, at::Device device) {
    return to_device(std::move(tensor), device);
  }
};

template <>
struct Collate<torch::data::Example<>> {
  using Batch = torch::data::Example<>;
  static Batch make(Batch batch, at::Device device) {
    return {to_device(std::move(batch.data), device), to_device(std::move(batch.target), device)};
  }
};

template <>
struct Collate<torch::data::TensorExample> {
  using Batch = torch::data::TensorExample;
  static Batch make(Batch batch, at::Device device) {
    return {to_device(std::move(batch.data), device)};
  }
};

template <>
struct Collate<std::vector<at::Tensor>> {
  using Batch = at::Tensor;
  static Batch make(const std::vector<at::Tensor>& samples, at::Device device) {
    return to_device(stack(samples), device);
  }
};

template <>
struct Collate<std::vector<torch::data::Example<>>> {
  using Batch = torch::data::Example<>;
  static Batch make(std::vector<Batch> examples, at::Device device) {
    std::vector<at::Tensor> data, target;
    data.reserve(examples.size());
    target.reserve(examples.size());
    for (auto& example : examples) {
      data.push_back(std::move(example.data));
      target.push_back(std::move(example.target));
    }
    return {to_device(stack(data), device), to_device(stack(target), device)};
  }
};

template <>
struct Collate<std::vector<torch::data::TensorExample>> {
  using Batch = torch::data::TensorExample;
  static Batch make(std::vector<Batch> examples, at::Device device) {
    std::vector<at::Tensor> data;
    data.reserve(examples.size());
    for (auto& example : examples) data.push_back(std::move(example.data));
    return {to_device(stack(data), device)};
  }
};

template <class Returned>
using BatchOf = typename Collate<std::decay_t<Returned>>::Batch;

template <class Returned>
BatchOf<Returned> collate(Returned&& returned, at::Device device) {
  return Collate<std::decay_t<Returned>>::make(std::forward<Returned>(returned), device);
}

}  // namespace coupler::detail
