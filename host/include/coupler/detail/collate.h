// Converts what a dataset's get_batch returns into the batch a training loop gets, and transforms
// batches of tensors. Pure functions, any thread. Internal to data_loader.h; not included by users.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/data/example.h>

#include <type_traits>
#include <utility>
#include <vector>

namespace coupler::detail {

// Stacks equally shaped tensors along a new first dimension. Throws Error(kInvalidArgument) naming
// the first two samples of the batch whose shapes differ.
at::Tensor stack(const std::vector<at::Tensor>& samples);

// The batch's type and how to make it, by the type get_batch returns.
template <class Returned>
struct Collate {
  using Batch = Returned;
  static Batch make(Returned returned) { return returned; }
};

template <>
struct Collate<std::vector<at::Tensor>> {
  using Batch = at::Tensor;
  static Batch make(const std::vector<at::Tensor>& samples) { return stack(samples); }
};

template <>
struct Collate<std::vector<torch::data::Example<>>> {
  using Batch = torch::data::Example<>;
  static Batch make(std::vector<Batch> examples) {
    std::vector<at::Tensor> data, target;
    data.reserve(examples.size());
    target.reserve(examples.size());
    for (auto& example : examples) {
      data.push_back(std::move(example.data));
      target.push_back(std::move(example.target));
    }
    return {stack(data), stack(target)};
  }
};

template <>
struct Collate<std::vector<torch::data::TensorExample>> {
  using Batch = torch::data::TensorExample;
  static Batch make(std::vector<Batch> examples) {
    std::vector<at::Tensor> data;
    data.reserve(examples.size());
    for (auto& example : examples) data.push_back(std::move(example.data));
    return {stack(data)};
  }
};

template <class Returned>
using BatchOf = typename Collate<std::decay_t<Returned>>::Batch;

template <class Returned>
BatchOf<Returned> collate(Returned&& returned) {
  return Collate<std::decay_t<Returned>>::make(std::forward<Returned>(returned));
}

// The tensors of a batch, for types that consist of tensors only.
template <class Batch>
struct TensorsOf {
  static constexpr bool known = false;
};

template <>
struct TensorsOf<at::Tensor> {
  static constexpr bool known = true;
  static std::vector<at::Tensor> list(const at::Tensor& batch) { return {batch}; }
  static at::Tensor make(std::vector<at::Tensor> tensors) { return std::move(tensors.at(0)); }
};

template <>
struct TensorsOf<torch::data::Example<>> {
  static constexpr bool known = true;
  static std::vector<at::Tensor> list(const torch::data::Example<>& batch) {
    return {batch.data, batch.target};
  }
  static torch::data::Example<> make(std::vector<at::Tensor> tensors) {
    return {std::move(tensors.at(0)), std::move(tensors.at(1))};
  }
};

template <>
struct TensorsOf<torch::data::TensorExample> {
  static constexpr bool known = true;
  static std::vector<at::Tensor> list(const torch::data::TensorExample& batch) {
    return {batch.data};
  }
  static torch::data::TensorExample make(std::vector<at::Tensor> tensors) {
    return {std::move(tensors.at(0))};
  }
};

// Returns the batch with each defined tensor replaced by change(tensor).
template <class Batch, class Change>
Batch change_tensors(const Batch& batch, const Change& change) {
  auto tensors = TensorsOf<Batch>::list(batch);
  for (at::Tensor& tensor : tensors) {
    if (tensor.defined()) tensor = change(tensor);
  }
  return TensorsOf<Batch>::make(std::move(tensors));
}

// Returns a copy that shares no memory with the batch (as far as copies of its type share none).
template <class Batch>
Batch deep_copy(const Batch& batch) {
  if constexpr (TensorsOf<Batch>::known) {
    return change_tensors(batch, [](const at::Tensor& tensor) { return tensor.clone(); });
  } else {
    return batch;
  }
}

}  // namespace coupler::detail
