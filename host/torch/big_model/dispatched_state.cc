#include "big_model/dispatched_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "base/mapped_file.h"
#include "base/process.h"
#include "base/units.h"
#include "big_model/held_bytes.h"
#include "device/device_memory.h"
#include "empty_weights/empty_weights.h"
#include "residency/intercept.h"
#include "residency/parameter_hooks.h"

namespace coupler::big_model {
namespace {

constexpr size_t kAlignment = 64;                  // preferred by kernels
constexpr size_t kMinUnitBytes = size_t{1} << 20;  // if memory is short
// With a memory bound, the least that activations and the heap take.
constexpr uint64_t kSpare = uint64_t{16} << 20;
// Likewise when a unit comes. A first pass brings LibTorch's code that it runs into memory, in
// pieces of up to 2 MiB of the page cache's choice: tens of MiB in all.
constexpr uint64_t kSpareInFirstPass = 2 * kSpare, kSpareLater = kSpare / 2;

// The tensors of one unit, which are fetched together.
struct WeightGroup {
  std::vector<size_t> tensors;  // indices into the given list
  std::vector<size_t> offsets;  // of each in the unit's memory, bytes
  size_t bytes = 0;
  weights::FilePlace place;  // if the unit is used in place in its file; else it is copied
};

// Files align tensors to 8 bytes or more, so gaps between neighbors are smaller than kAlignment.
bool follows(const WeightGroup& unit, const PlacedTensor& tensor, size_t most) {
  const weights::FilePlace& place = tensor.value.place;
  if (unit.place.file == nullptr || place.file != unit.place.file) return false;
  const uint64_t end = unit.place.begin + unit.bytes;
  return place.begin >= end && place.begin - end < kAlignment &&
         place.begin - unit.place.begin + tensor.bytes() <= most;
}

void append(WeightGroup& unit, size_t index, const PlacedTensor& tensor) {
  const bool in_file = unit.place.file != nullptr;
  const size_t offset = in_file ? tensor.value.place.begin - unit.place.begin
                                : (unit.bytes + kAlignment - 1) / kAlignment * kAlignment;
  unit.tensors.push_back(index);
  unit.offsets.push_back(offset);
  unit.bytes = offset + tensor.bytes();
}

// Groups the tensors that run on `device`, except those that stay on the CPU unpacked. On the CPU,
// neighbors in one file form one unit of at most `most` bytes, or of one tensor; otherwise a unit
// holds a module's own tensors.
std::vector<WeightGroup> group_weights(const std::vector<PlacedTensor>& tensors, c10::Device device,
                                       size_t most) {
  std::vector<WeightGroup> units;
  const PlacedTensor* before = nullptr;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const PlacedTensor& tensor = tensors[i];
    if (tensor.runs_on != device || (tensor.stays() && device.is_cpu() && tensor.packed == nullptr))
      continue;
    const bool in_file = device.is_cpu() && tensor.value.place.file != nullptr;
    const bool together = before != nullptr && (in_file ? follows(units.back(), tensor, most)
                                                        : units.back().place.file == nullptr &&
                                                              before->module == tensor.module &&
                                                              before->stays() == tensor.stays());
    if (!together) {
      units.emplace_back();
      if (in_file) units.back().place = tensor.value.place;
    }
    append(units.back(), i, tensor);
    before = &tensor;
  }
  return units;
}

std::mutex registry_mutex;
std::map<const void*, const DispatchedState*>& registry() {
  static auto* const kRegistry = new std::map<const void*, const DispatchedState*>;
  return *kRegistry;
}

// Whether the value is the variable's own memory.
bool is_own(const PlacedTensor& tensor) {
  return !tensor.variable.is_meta() && tensor.value.tensor.defined() &&
         tensor.value.tensor.is_alias_of(tensor.variable);
}

// Moves the value out of the tensor: the unit owns it from now on.
WeightUnits::Piece piece_of(PlacedTensor& tensor, size_t offset) {
  const bool packed = tensor.packed != nullptr;
  return {std::move(tensor.value), offset,
          packed ? std::vector<int64_t>{static_cast<int64_t>(tensor.bytes())}
                 : tensor.variable.sizes().vec(),
          packed ? at::kByte : tensor.type};
}

}  // namespace

void WeightUnits::keep_within(uint64_t most, std::vector<size_t> kept,
                              std::function<void(size_t unit)> let_go) {
  most_ = most;
  kept_ = std::move(kept);
  let_go_ = std::move(let_go);
}

// A copied unit takes memory of the pool, which usually has it already.
bool WeightUnits::has_room(const PlacedUnit& unit, uint64_t spare) const {
  return most_ == 0 || unit.place.file == nullptr || resident_bytes() + unit.bytes + spare <= most_;
}

// Kept units that have not come yet would not fit either, so they count.
bool WeightUnits::make_room(const PlacedUnit& unit) {
  while (!has_room(unit, kSpareLater)) {
    if (kept_.empty()) return false;
    const size_t last = kept_.back();
    kept_.pop_back();
    let_go_(last);
  }
  return true;
}

// In a first pass, nothing is let go for a unit that is not needed yet.
bool WeightUnits::has_room_ahead(size_t unit) {
  const PlacedUnit& wanted = units_.at(unit);
  return first_pass_ ? has_room(wanted, kSpareInFirstPass) : make_room(wanted);
}

void* WeightUnits::lend(size_t unit) {
  constexpr size_t kReadAhead = 2;  // units after this one that the disk is asked to read
  PlacedUnit& wanted = units_.at(unit);
  if (wanted.place.file == nullptr) return nullptr;
  if (std::exchange(wanted.lent, true)) first_pass_ = false;
  make_room(wanted);  // if there is none, the unit is needed anyway
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
  if (!std::exchange(any_, true) && on_first_) on_first_();
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

void require_values(const std::vector<PlacedTensor>& tensors) {
  for (const PlacedTensor& tensor : tensors) {
    if (tensor.value.exists()) continue;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("'{}' is on the meta device and has no values", tensor.name),
                {.subject = tensor.name,
                 .hint = "load a checkpoint that contains it with load_checkpoint_and_dispatch, or "
                         "name the offload folder that contains it"});
  }
}

DispatchedState::DispatchedState(strategy::Model model, DeviceMap map,
                                 std::vector<PlacedTensor> tensors,
                                 std::vector<std::shared_ptr<const weights::WeightSource>> sources,
                                 const DispatchRules& rules)
    : model_(std::move(model)),
      map_(std::move(map)),
      tensors_(std::move(tensors)),
      sources_(std::move(sources)) {
  const at::NoGradGuard no_grad;
  residency::check_intercept();
  require_values(tensors_);
  {
    const std::lock_guard lock(registry_mutex);
    if (registry().count(model_.identity) != 0)
      throw Error(ErrorCode::kUsage,
                  fmt::format("the model '{}' is already dispatched", model_.name),
                  {.subject = model_.name, .hint = "destroy its DispatchedModel first"});
  }
  choose_units(rules);
  if (rules.max_resident_bytes > 0) {
    const uint64_t held = held_bytes() + kSpare;
    room_for_more_ = rules.max_resident_bytes > held ? rules.max_resident_bytes - held : 0;
  }
  settle();
  std::vector<c10::Device> devices;
  for (const PlacedTensor& tensor : tensors_) {
    if (std::find(devices.begin(), devices.end(), tensor.runs_on) == devices.end())
      devices.push_back(tensor.runs_on);
  }
  for (const c10::Device device : devices) make_site(device, rules);
  residency::restore_hooks();
  const std::lock_guard lock(registry_mutex);
  registry().emplace(model_.identity, this);
}

DispatchedState::~DispatchedState() {
  const std::lock_guard lock(registry_mutex);
  const auto found = registry().find(model_.identity);
  if (found != registry().end() && found->second == this) registry().erase(found);
}

const DispatchedState* DispatchedState::of(const void* identity) {
  const std::lock_guard lock(registry_mutex);
  const auto found = registry().find(identity);
  return found == registry().end() ? nullptr : found->second;
}

// Required are the tensors that stay on the CPU and the two largest units of the others: one in use
// and the next one. Units are made smaller if that is too much.
void DispatchedState::choose_units(const DispatchRules& rules) {
  if (rules.max_resident_bytes == 0) return;
  uint64_t kept = 0;
  for (const PlacedTensor& tensor : tensors_) {
    // Packed weights are in memory already and move into their units.
    if (tensor.stored_on.is_cpu() && tensor.variable.is_meta() && tensor.packed == nullptr)
      kept += tensor.bytes();
  }
  uint64_t first = 0, second = 0;
  std::string largest;
  const uint64_t held = held_bytes();
  uint64_t needed = 0;
  for (; unit_bytes_ >= kMinUnitBytes; unit_bytes_ /= 2) {
    first = second = 0;
    for (const WeightGroup& unit : group_weights(tensors_, c10::kCPU, unit_bytes_)) {
      if (tensors_[unit.tensors[0]].stays()) continue;
      if (unit.bytes > first) {
        second = std::exchange(first, unit.bytes);
        largest = tensors_[unit.tensors[0]].name;
      } else {
        second = std::max<uint64_t>(second, unit.bytes);
      }
    }
    needed = held + kept + first + second + kSpare;
    if (needed <= rules.max_resident_bytes) return;
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("max_memory gives the CPU {}, but {} are needed: {} stay there, {} are "
                          "for the two largest units that come from the disk{}, {} are already "
                          "used by the process and {} are for activations",
                          format_byte_size(rules.max_resident_bytes), format_byte_size(needed),
                          format_byte_size(kept), format_byte_size(first + second),
                          largest.empty() ? "" : fmt::format(" ('{}' and the next)", largest),
                          format_byte_size(held), format_byte_size(kSpare)),
              {.subject = "max_memory",
               .hint = "give the CPU that much, or put more of the model on the disk"});
}

// Tensors that stay in host memory need no unit: operations use them directly.
void DispatchedState::settle() {
  for (PlacedTensor& tensor : tensors_) {
    if (!tensor.stays() || !tensor.runs_on.is_cpu() || tensor.packed != nullptr) continue;
    HostValue& value = tensor.value;
    if (is_own(tensor)) continue;
    if (!value.tensor.defined() || tensor.buffer) {
      // To be converted or written to: running statistics must belong to the model alone.
      const at::Tensor own = at::empty(tensor.variable.sizes(), tensor.type);
      copy_value(value, own);
      value = {own, {}, nullptr};
    } else if (value.place.file != nullptr) {
      populate(*value.place.file, value.place.begin, value.tensor.nbytes());
      room_for_more_ -= std::min<uint64_t>(room_for_more_, value.tensor.nbytes());
    }
    empty_weights::give_value(tensor.variable, value.tensor);
  }
}

void DispatchedState::make_site(c10::Device device, const DispatchRules& rules) {
  const std::vector<WeightGroup> plan = group_weights(tensors_, device, unit_bytes_);
  if (plan.empty()) return;
  auto site = device.is_cpu() ? std::make_unique<Site>(residency::PoolMemory::kPages)
                              : std::make_unique<Site>(device);
  auto units = std::make_unique<WeightUnits>(device, rules.on_first);
  site->units = units.get();
  const bool bounded = rules.max_resident_bytes > 0;
  // The kernel may reclaim pages of a file; without a bound, that is left to it.
  const bool unbounded = device.is_cpu() && !bounded;
  site->residency = std::make_unique<residency::Residency>(
      std::move(units), site->pool,
      residency::ResidencyOptions{
          .prefetch = rules.prefetch, .live_bytes = 0, .shared = false, .in_order = true});
  uint64_t window = 0;
  for (const WeightGroup& planned : plan) window = std::max<uint64_t>(window, planned.bytes);
  uint64_t room = room_for_more_ > 3 * window ? room_for_more_ - 3 * window : 0;
  std::vector<size_t> kept;  // units that stay because they fit, and are used in their files
  for (const WeightGroup& planned : plan) {
    const PlacedTensor& first = tensors_[planned.tensors[0]];
    const bool stays = first.stays();
    auto unit = std::make_unique<residency::Unit>();
    unit->name = model_.modules[first.module].name;
    unit->bytes = std::max<size_t>(planned.bytes, 1);
    unit->placed = true;
    if (!device.is_cpu()) {
      unit->device = device;
      residency::Unit::any_on_device.store(true);
    }
    const bool fits = device.is_cpu() && bounded && !stays && planned.bytes <= room;
    if (fits) room -= planned.bytes;
    const bool in_file = planned.place.file != nullptr;
    unit->sticky = stays || rules.keep || fits || (unbounded && in_file);
    WeightUnits::PlacedUnit placed{.bytes = planned.bytes, .pieces = {}, .place = planned.place};
    placed.once = stays;
    placed.keep_pages = !bounded;
    for (size_t i = 0; i < planned.tensors.size(); ++i) {
      PlacedTensor& tensor = tensors_[planned.tensors[i]];
      // Pinned memory is copied at the full speed of the bus.
      if (!stays && !device.is_cpu() && tensor.stored_on.is_cpu() &&
          tensor.value.tensor.defined() && device::can_pin(device)) {
        tensor.value = {tensor.value.tensor.pin_memory(), {}, nullptr};
      }
      if (!in_file) placed.pieces.push_back(piece_of(tensor, planned.offsets[i]));
      manage(*unit, tensor, planned.offsets[i]);
    }
    site->units->add(std::move(placed));
    residency::Unit& added = site->residency->add(std::move(unit));
    if (fits && in_file) kept.push_back(added.index);
    for (const size_t index : planned.tensors) residency::put_intercept(tensors_[index].variable);
    if (stays) {
      site->residency->use(added);
      residency::Residency::unpin(added);
    }
  }
  if (device.is_cpu() && bounded) {
    site->units->keep_within(rules.max_resident_bytes, std::move(kept),
                             [&residency = *site->residency](size_t unit) {
                               residency.let_go(*residency.units()[unit]);
                             });
  }
  sites_.push_back(std::move(site));
}

void DispatchedState::manage(residency::Unit& unit, const PlacedTensor& tensor, size_t offset) {
  auto managed = std::make_unique<residency::ManagedStorage>();
  managed->name = tensor.name;
  managed->offset = offset;
  managed->device = tensor.runs_on;
  if (tensor.packed != nullptr) {
    managed->packed = tensor.packed;
    managed->packed_rows = tensor.variable.size(0);
    managed->packed_numel = tensor.variable.numel();
    managed->packed_type = tensor.type;
  }
  empty_weights::give_value(tensor.variable,
                            make_managed(*managed, tensor.variable.sizes(), tensor.type));
  unit.storages.push_back(std::move(managed));
}

void DispatchedState::release() {
  for (const auto& site : sites_) {
    site->residency->release_all();
    site->units->all_released();
  }
}

}  // namespace coupler::big_model
