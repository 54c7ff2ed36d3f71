// From what a dataset's get_batch returns to the batch a training loop gets, and what can be done
// to batches of tensors. Pure, any thread. Behind data_loader.h; not included by users.
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

// A batch's type, and how it is made, by the type get_batch returns.
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

// The tensors in a batch, for the types that consist of nothing else.
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

// The batch with change(tensor) in place of each tensor that is defined.
template <class Batch, class Change>
Batch change_tensors(const Batch& batch, const Change& change) {
  auto tensors = TensorsOf<Batch>::list(batch);
  for (at::Tensor& tensor : tensors) {
    if (tensor.defined()) tensor = change(tensor);
  }
  return TensorsOf<Batch>::make(std::move(tensors));
}

// A batch that shares no memory with this one (as far as its type's copies share none).
template <class Batch>
Batch deep_copy(const Batch& batch) {
  if constexpr (TensorsOf<Batch>::known) {
    return change_tensors(batch, [](const at::Tensor& tensor) { return tensor.clone(); });
  } else {
    return batch;
  }
}

}  // namespace coupler::detail
