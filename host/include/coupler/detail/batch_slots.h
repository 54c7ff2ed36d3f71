// Batches of any type: how they are made of what a dataset returns, and BatchSlots, which keeps
// them. Internal to data_loader.h; not included by users.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Type.h>
#include <coupler/detail/loader.h>
#include <coupler/nested.h>
#include <torch/data/example.h>

#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace coupler::detail {

// ---- From what get_batch returns to the batch a training loop gets. Pure functions, any thread.
// ----

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

// What a loader without a collate function uses.
struct DefaultCollate {
  template <class Returned>
  BatchOf<Returned> operator()(Returned&& returned) const {
    return Collate<std::decay_t<Returned>>::make(std::forward<Returned>(returned));
  }
};

// Throws Error(kInvalidArgument): a collate function returned a structure without a tensor.
[[noreturn]] void refuse_empty_batch(const std::string& type);

// Makes a batch of samples.
template <class CollateFn, class Samples>
auto batch_of(CollateFn& collate, Samples&& samples) {
  using Returned = std::invoke_result_t<CollateFn&, Samples>;
  static_assert(!std::is_void_v<Returned>, "a collate function returns the batch");
  using Batch = std::decay_t<Returned>;
  Batch batch = std::invoke(collate, std::forward<Samples>(samples));
  if constexpr (is_nested_v<Batch> && !std::is_same_v<CollateFn, DefaultCollate>) {
    bool any = false;
    for_each_leaf(batch, [&](const at::Tensor& tensor) { any = any || tensor.defined(); });
    if (!any) refuse_empty_batch(c10::demangle(typeid(Batch).name()));
  }
  return batch;
}

// Whether a batch consists of tensors only, so that it can be moved and copied; it can be sent to
// other ranks unless the number of its tensors may differ, as in a vector or map.
template <class Batch>
inline constexpr bool is_tensors_v = is_nested_v<Batch>;

// Whether a batch's tensors can be moved and copied. More types than those that can be sent: a rank
// that receives tensors must know what they belong to.
template <class Batch>
inline constexpr bool has_tensors_v = is_tensors_v<Batch>;

// Returns the batch with each defined tensor replaced by change(tensor).
template <class Batch, class Change>
Batch change_tensors(Batch batch, const Change& change) {
  for_each_leaf(batch, [&](at::Tensor& tensor) {
    if (tensor.defined()) tensor = change(tensor);
  });
  return batch;
}

// Returns a copy that shares no memory with the batch (as far as copies of its type share none).
template <class Batch>
Batch deep_copy(const Batch& batch) {
  if constexpr (has_tensors_v<Batch>) {
    return change_tensors(batch, [](const at::Tensor& tensor) { return tensor.clone(); });
  } else {
    return batch;
  }
}

// Throws Error(kUnsupported): a batch of this type cannot be `done` ("copied", "sent").
[[noreturn]] void refuse_batch_type(const std::string& type, const char* done);

template <class BatchType>
class BatchSlots : public BatchSource {
 public:
  using Batch = BatchType;

  bool sends_tensors() const override {
    if constexpr (is_tensors_v<Batch> && std::is_default_constructible_v<Batch>) {
      return !view_of(Batch()).leaves.empty();
    } else {
      return false;
    }
  }
  std::string batch_type() const override { return c10::demangle(typeid(Batch).name()); }

  // The loop's batch; valid between take() or stand_in() and clear().
  Batch& current() { return *current_; }

  void take(size_t slot, at::Device device, bool non_blocking) override {
    current_ = on_device(std::move(*slots_[slot]), device, non_blocking);
    slots_[slot].reset();
  }

  void clear() override { current_.reset(); }

  void keep() override { kept_ = copy(*current_); }
  void keep_slot(size_t slot, at::Device device) override {
    kept_ = on_device(copy(*slots_[slot]), device, false);
    slots_[slot].reset();
  }
  void stand_in() override { current_ = copy(*kept_); }

  std::vector<at::Tensor> tensors(size_t slot) const override {
    if constexpr (is_tensors_v<Batch>) {
      return view_of(*slots_[slot]).leaves;
    } else {
      refuse_batch_type(batch_type(), "sent");
    }
  }

  void put(size_t slot, std::vector<at::Tensor> tensors) override {
    if constexpr (is_tensors_v<Batch> && std::is_default_constructible_v<Batch>) {
      Batch batch{};
      if (view_of(batch).leaves.size() != tensors.size())
        refuse_batch_type(batch_type(), "sent: its number of tensors may differ");
      slots_[slot] = with_leaves(std::move(batch), std::move(tensors));
    } else {
      refuse_batch_type(batch_type(), "sent");
    }
  }

 protected:
  // Resets to `count` empty slots.
  void clear_slots(size_t count) {
    slots_.clear();
    slots_.resize(count);
    current_.reset();
    kept_.reset();
  }

  void fill_slot(size_t slot, Batch batch, bool pin) {
    if constexpr (has_tensors_v<Batch>) {
      if (pin) {
        batch = change_tensors(batch, [](const at::Tensor& tensor) { return tensor.pin_memory(); });
      }
    }
    slots_[slot] = std::move(batch);
  }

 private:
  static Batch on_device(Batch batch, at::Device device, bool non_blocking) {
    if constexpr (has_tensors_v<Batch>) {
      if (!device.is_cpu()) {
        return change_tensors(
            batch, [&](const at::Tensor& tensor) { return tensor.to(device, non_blocking); });
      }
    }
    return batch;
  }

  Batch copy(const Batch& batch) const {
    if constexpr (std::is_copy_constructible_v<Batch>) {
      return deep_copy(batch);
    } else {
      refuse_batch_type(batch_type(), "copied");
    }
  }

  std::vector<std::optional<Batch>> slots_;
  std::optional<Batch> current_;
  std::optional<Batch> kept_;
};

}  // namespace coupler::detail
