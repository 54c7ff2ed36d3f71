// DispatchedState: what a DispatchedModel owns: units of the model's tensors on each device, the
// residencies that fetch them, and the map. Created and destroyed by one thread; in between, any
// thread may use the model.
#pragma once

#include <coupler/device_map.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dispatch/placed_tensor.h"
#include "dispatch/unit_plan.h"
#include "dispatch/weight_units.h"
#include "residency/residency.h"
#include "strategy/model.h"
#include "weights/weight_source.h"

namespace coupler {

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
  DispatchedState(Model model, DeviceMap map, std::vector<PlacedTensor> tensors,
                  std::vector<std::shared_ptr<const WeightSource>> sources,
                  const DispatchRules& rules);
  ~DispatchedState();
  DispatchedState(const DispatchedState&) = delete;
  DispatchedState& operator=(const DispatchedState&) = delete;

  const DeviceMap& map() const { return map_; }
  const Model& model() const { return model_; }
  // Offloads all units and frees the accelerators' memory. Throws Error(kUsage) while an operation
  // uses a unit.
  void release();

  // The state of a dispatched model; null if the model is not dispatched.
  static const DispatchedState* of(const void* identity);

 private:
  struct Site {
    explicit Site(c10::Device on) : device(on), pool(on) {}
    explicit Site(PoolMemory memory) : pool(memory) {}
    c10::Device device = c10::kCPU;
    BufferPool pool;
    WeightUnits* units = nullptr;  // the residency's
    std::unique_ptr<Residency> residency;
  };

  void choose_units(const DispatchRules& rules);
  void settle();
  void make_site(c10::Device device, const DispatchRules& rules);
  void manage(Unit& unit, const PlacedTensor& tensor, size_t offset);

  const Model model_;
  const DeviceMap map_;
  std::vector<PlacedTensor> tensors_;
  const std::vector<std::shared_ptr<const WeightSource>> sources_;
  std::vector<std::unique_ptr<Site>> sites_;
  size_t unit_bytes_ = kUnitBytes;
  uint64_t room_for_more_ = 0;  // part of max_resident_bytes for units that stay
};

// Throws Error(kInvalidArgument) naming the first meta tensor that has no source of values.
void require_values(const std::vector<PlacedTensor>& tensors);

}  // namespace coupler
