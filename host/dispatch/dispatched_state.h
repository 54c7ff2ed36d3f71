// DispatchedState: what a DispatchedModel holds: units of the model's tensors on each device, the
// residencies that fetch them, and the map. Made and given up by one thread; meanwhile the model
// may be used by any.
#pragma once

#include <coupler/device_map.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dispatch/placed_tensor.h"
#include "dispatch/weight_units.h"
#include "residency/residency.h"
#include "strategy/model.h"
#include "weights/weight_source.h"

namespace coupler {

struct DispatchRules {
  int prefetch = 2;  // units fetched ahead of their use
  // Of this process; 0: no bound. What does not fit beside the rest is dropped after its use.
  uint64_t max_resident_bytes = 0;
  // Of cpu_offload_with_hook: units stay once they were used, until release().
  bool keep = false;
  std::function<void()> on_first;
};

class DispatchedState {
 public:
  // Gives the model's parameters and buffers their places. sources: what values come from, kept.
  // Throws Error(kInvalidArgument) naming a tensor that has no values, or how much memory would be
  // needed; Error(kIo) for files.
  DispatchedState(Model model, DeviceMap map, std::vector<PlacedTensor> tensors,
                  std::vector<std::shared_ptr<const WeightSource>> sources,
                  const DispatchRules& rules);
  ~DispatchedState();
  DispatchedState(const DispatchedState&) = delete;
  DispatchedState& operator=(const DispatchedState&) = delete;

  const DeviceMap& map() const { return map_; }
  const Model& model() const { return model_; }
  // Back to where it lies: accelerators' memory is given back. Throws Error(kUsage) while an
  // operation uses it.
  void release();

  // The state of a model that is dispatched now; null where it is not.
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

  void require_room(const DispatchRules& rules) const;
  void settle();
  void make_site(c10::Device device, const DispatchRules& rules);
  void manage(Unit& unit, const PlacedTensor& tensor, size_t offset);

  const Model model_;
  const DeviceMap map_;
  std::vector<PlacedTensor> tensors_;
  const std::vector<std::shared_ptr<const WeightSource>> sources_;
  std::vector<std::unique_ptr<Site>> sites_;
  uint64_t room_for_more_ = 0;  // of max_resident_bytes, for units that need not be dropped
};

// Tensors on meta that nothing gives values to, by name: throws Error(kInvalidArgument) for the
// first of them.
void require_values(const std::vector<PlacedTensor>& tensors);

}  // namespace coupler
