// DispatchedState: what a DispatchedModel owns: units of the model's tensors on each device, the
// residencies that fetch them, and the map. Created and destroyed by one thread; in between, any
// thread may use the model.
#pragma once

#include <ATen/core/Tensor.h>
#include <coupler/device_map.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "big_model/host_value.h"
#include "residency/residency.h"
#include "residency/unit.h"
#include "strategy/model.h"
#include "weights/weight_source.h"

namespace coupler::big_model {

// WeightUnits: the units of a dispatched model, as the Source of one Residency: on the CPU directly
// from mapped files, on accelerators copied from host memory or files. Call add() before the first
// use; threads as for Source.
class WeightUnits : public residency::Source {
 public:
  struct Piece {
    HostValue value;
    size_t offset = 0;  // in the unit
    std::vector<int64_t> sizes;
    at::ScalarType type = at::kFloat;
  };
  struct PlacedUnit {
    size_t bytes = 0;
    std::vector<Piece> pieces;  // if the unit is copied
    weights::FilePlace place;   // if it is used in its file
    bool once = false;          // copied once and kept; the pieces are dropped then
    bool keep_pages = true;     // keep the file's pages when the unit is released
    bool lent = false;          // before
  };

  // device: where the units' memory is. on_first (null: nothing) is called when a unit becomes
  // resident after none was: another model may have to make room.
  WeightUnits(c10::Device device, std::function<void()> on_first)
      : device_(device), on_first_(std::move(on_first)) {}

  void add(PlacedUnit unit) { units_.push_back(std::move(unit)); }
  // Keeps the process within `most` resident bytes while units come from their files: the memory
  // that it takes after the model was placed (activations, LibTorch's code when it first runs)
  // takes the place of the units in `kept`, the last one first, and of units that come ahead of
  // their use. let_go: ends that a unit is kept.
  void keep_within(uint64_t most, std::vector<size_t> kept,
                   std::function<void(size_t unit)> let_go);
  void all_released() { any_ = false; }

  bool has_room_ahead(size_t unit) override;
  void* lend(size_t unit) override;
  void take_back(size_t unit) override;
  void fill(size_t unit, void* memory) override;
  // Always throws: placed parameters are read-only.
  void store(size_t unit, const void* memory) override;

 private:
  bool has_room(const PlacedUnit& unit, uint64_t spare) const;
  bool make_room(const PlacedUnit& unit);  // false: no kept unit is left, and it does not fit

  const c10::Device device_;
  const std::function<void()> on_first_;
  std::vector<PlacedUnit> units_;
  bool any_ = false;

  uint64_t most_ = 0;  // resident bytes; 0: no bound
  std::vector<size_t> kept_;
  std::function<void(size_t unit)> let_go_;
  bool first_pass_ = true;  // no unit has come back yet
};

struct DispatchRules {
  int prefetch = 2;  // units fetched ahead of their use
  // Of this process; 0: no bound. Units that do not fit in addition to the rest are dropped after
  // use.
  uint64_t max_resident_bytes = 0;
  // For cpu_offload_with_hook: units stay after use until release().
  bool keep = false;
  std::function<void()> on_first;
};

class DispatchedState {
 public:
  // Moves the model's parameters and buffers to their devices. sources: the sources of the values,
  // kept alive. Throws Error(kInvalidArgument) naming a tensor that has no values, or the memory
  // that would be needed; Error(kIo) for files.
  DispatchedState(strategy::Model model, DeviceMap map, std::vector<PlacedTensor> tensors,
                  std::vector<std::shared_ptr<const weights::WeightSource>> sources,
                  const DispatchRules& rules);
  ~DispatchedState();
  DispatchedState(const DispatchedState&) = delete;
  DispatchedState& operator=(const DispatchedState&) = delete;

  const DeviceMap& map() const { return map_; }
  // Offloads all units and frees the accelerators' memory. Throws Error(kUsage) while an operation
  // uses a unit.
  void release();

  // The state of a dispatched model; null if the model is not dispatched.
  static const DispatchedState* of(const void* identity);

 private:
  struct Site {  // the units of one device
    explicit Site(c10::Device on) : pool(on) {}
    explicit Site(residency::PoolMemory memory) : pool(memory) {}
    residency::BufferPool pool;
    WeightUnits* units = nullptr;  // the residency's
    std::unique_ptr<residency::Residency> residency;
  };

  void choose_units(const DispatchRules& rules);
  void settle();
  void make_site(c10::Device device, const DispatchRules& rules);
  void manage(residency::Unit& unit, const PlacedTensor& tensor, size_t offset);

  const strategy::Model model_;
  const DeviceMap map_;
  std::vector<PlacedTensor> tensors_;
  const std::vector<std::shared_ptr<const weights::WeightSource>> sources_;
  std::vector<std::unique_ptr<Site>> sites_;
  size_t unit_bytes_ = size_t{16} << 20;  // the most in a unit that is used in its file
  uint64_t room_for_more_ = 0;            // part of max_resident_bytes for units that stay
};

// Throws Error(kInvalidArgument) naming the first meta tensor that has no source of values.
void require_values(const std::vector<PlacedTensor>& tensors);

}  // namespace coupler::big_model
