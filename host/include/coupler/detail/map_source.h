// MapSource: reads batches of a map-style dataset. Every worker except the loop's own thread has a
// copy of the dataset. Threading as in batch_source.h. Internal to data_loader.h; not included by
// users.
#pragma once

#include <coupler/detail/batch_slots.h>

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace coupler::detail {

// Throws Error(kInvalidArgument): workers need copies, but the dataset is not copyable.
[[noreturn]] void refuse_to_copy(const std::string& type, size_t workers);

template <class Dataset>
class MapSource : public BatchSlots<BatchOf<typename Dataset::BatchType>> {
 public:
  explicit MapSource(Dataset dataset) : dataset_(std::move(dataset)) {}

  // The caller may change it outside of a loop; the next loop's workers copy it again.
  Dataset& dataset() {
    changed_ = true;
    return dataset_;
  }

  std::optional<size_t> samples() const override { return dataset_.size(); }
  bool is_stream() const override { return false; }

  void begin(const EpochStart& start) override {
    this->clear_slots(start.slots);
    if (changed_) copies_.clear();
    changed_ = false;
    if (copies_.size() >= start.workers || !start.reads) return;
    if constexpr (std::is_copy_constructible_v<Dataset>) {
      while (copies_.size() < start.workers) copies_.push_back(std::make_unique<Dataset>(dataset_));
    } else {
      refuse_to_copy(c10::demangle(typeid(Dataset).name()), start.workers);
    }
  }

  StepRead fetch(size_t worker, size_t slot, const StepRequest& request) override {
    Dataset& dataset = worker == 0 ? dataset_ : *copies_[worker - 1];
    this->fill_slot(slot, collate(dataset.get_batch(request.indices)), request.pin);
    return {request.indices.size(), request.indices.size(), 0};
  }

 private:
  Dataset dataset_;
  std::vector<std::unique_ptr<Dataset>> copies_;
  bool changed_ = false;
};

}  // namespace coupler::detail
