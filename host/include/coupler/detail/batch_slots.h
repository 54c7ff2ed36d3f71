// BatchSlots: the part of a BatchSource that depends on the batch's type but not on how it is read.
// Threading as in batch_source.h. Internal to data_loader.h; not included by users.
#pragma once

#include <c10/util/Type.h>
#include <coupler/detail/batch_source.h>
#include <coupler/detail/collate.h>

#include <optional>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace coupler::detail {

// Throws Error(kUnsupported): a batch of this type cannot be `done` ("copied", "sent").
[[noreturn]] void refuse_batch_type(const std::string& type, const char* done);

template <class BatchType>
class BatchSlots : public BatchSource {
 public:
  using Batch = BatchType;

  bool sends_tensors() const override { return TensorsOf<Batch>::known; }
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
    if constexpr (TensorsOf<Batch>::known) {
      return TensorsOf<Batch>::list(*slots_[slot]);
    } else {
      refuse_batch_type(batch_type(), "sent");
    }
  }

  void put(size_t slot, std::vector<at::Tensor> tensors) override {
    if constexpr (TensorsOf<Batch>::known) {
      slots_[slot] = TensorsOf<Batch>::make(std::move(tensors));
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
    if constexpr (TensorsOf<Batch>::known) {
      if (pin) {
        batch = change_tensors(batch, [](const at::Tensor& tensor) { return tensor.pin_memory(); });
      }
    }
    slots_[slot] = std::move(batch);
  }

 private:
  static Batch on_device(Batch batch, at::Device device, bool non_blocking) {
    if constexpr (TensorsOf<Batch>::known) {
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
