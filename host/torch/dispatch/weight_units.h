// WeightUnits: the units of a dispatched model, as the Source of one Residency: on the CPU directly
// from mapped files, on accelerators copied from host memory or files. Call add() before the first
// use; threads as for Source.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "dispatch/host_value.h"
#include "residency/source.h"

namespace coupler {

class WeightUnits : public Source {
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
    FilePlace place;            // if it is used in its file
    bool once = false;          // copied once and kept; the pieces are dropped then
    bool keep_pages = true;     // keep the file's pages when the unit is released
  };

  // device: where the units' memory is.
  explicit WeightUnits(c10::Device device) : device_(device) {}

  void add(PlacedUnit unit) { units_.push_back(std::move(unit)); }
  // on_first is called when a unit becomes resident after none was: another model may have to make
  // room.
  void set_on_first(std::function<void()> on_first) { on_first_ = std::move(on_first); }
  void all_released() { any_ = false; }

  void* lend(size_t unit) override;
  void take_back(size_t unit) override;
  void fill(size_t unit, void* memory) override;
  // Always throws: placed parameters are read-only.
  void store(size_t unit, const void* memory) override;

 private:
  void note_first();

  const c10::Device device_;
  std::vector<PlacedUnit> units_;
  std::function<void()> on_first_;
  bool any_ = false;
};

}  // namespace coupler
