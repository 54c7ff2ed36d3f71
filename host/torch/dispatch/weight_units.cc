#include "dispatch/weight_units.h"

#include <ATen/ops/from_blob.h>
#include <coupler/error.h>

#include <algorithm>
#include <utility>

#include "base/mapping_guard.h"

namespace coupler {
namespace {

// How far ahead of the current unit the disk is asked to read.
constexpr size_t kReadAhead = 2;  // units

}  // namespace

void WeightUnits::note_first() {
  if (std::exchange(any_, true)) return;
  if (on_first_) on_first_();
}

void* WeightUnits::lend(size_t unit) {
  const PlacedUnit& wanted = units_.at(unit);
  if (wanted.place.file == nullptr) return nullptr;
  for (size_t next = unit; next < std::min(units_.size(), unit + 1 + kReadAhead); ++next) {
    const PlacedUnit& ahead = units_[next];
    if (ahead.place.file != nullptr) advise_in(*ahead.place.file, ahead.place.begin, ahead.bytes);
  }
  populate(*wanted.place.file, wanted.place.begin, wanted.bytes);
  return wanted.place.file->data() + wanted.place.begin;
}

void WeightUnits::take_back(size_t unit) {
  const PlacedUnit& given = units_.at(unit);
  if (given.place.file != nullptr && !given.keep_pages)
    drop(*given.place.file, given.place.begin, given.bytes);
}

void WeightUnits::fill(size_t unit, void* memory) {
  note_first();
  PlacedUnit& wanted = units_.at(unit);
  for (const Piece& piece : wanted.pieces) {
    const at::Tensor destination =
        at::for_blob(static_cast<char*>(memory) + piece.offset, piece.sizes)
            .options(at::TensorOptions(piece.type).device(device_))
            .target_device(device_)
            .make_tensor();
    copy_value(piece.value, destination, /*drop_pages=*/!wanted.keep_pages);
  }
  if (wanted.once) wanted.pieces.clear();
}

void WeightUnits::store(size_t, const void*) {
  throw Error(ErrorCode::kUnsupported, "the parameters of a dispatched model are read-only",
              {.subject = "dispatch_model", .hint = "train a model that is not dispatched"});
}

}  // namespace coupler
