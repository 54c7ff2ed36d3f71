#include "residency/residency.h"

#include <coupler/empty_weights.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/span.h"
#include "base/units.h"
#include "device/device.h"
#include "device/device_memory.h"
#include "residency/intercept.h"

namespace coupler::residency {
namespace {

// The last arrival that this thread's stream waited for; later work in the stream need not wait.
thread_local uint64_t last_awaited = 0;

}  // namespace

Residency::Residency(std::unique_ptr<Source> source, BufferPool& pool,
                     const ResidencyOptions& options)
    : source_(std::move(source)),
      pool_(pool),
      policy_(options, [this](size_t unit) { return try_release(*units_[unit]); }) {
  if (options.prefetch > 0) thread_ = std::thread([this] { run_prefetch(); });
}

Residency::~Residency() {
  {
    std::unique_lock lock(mutex_);
    finish_fetching(lock);
    stopping_ = true;
  }
  prefetch_requested_.notify_all();
  if (thread_.joinable()) thread_.join();
  // Parameters may outlive us: they must neither look managed nor point to pool memory. A null
  // pointer is not enough, since kernels do not check; access must throw.
  for (const auto& unit : units_) {
    for (const auto& managed : unit->storages) {
      managed->storage->set_data_ptr_noswap(c10::DataPtr(nullptr, managed->device));
      managed->storage->release_data_and_set_meta_custom_data_ptr_error_msg_(
          fmt::format("the values of parameter '{}' were destroyed with the Accelerator (or "
                      "Residency) that kept them",
                      managed->name));
    }
  }
}

Unit& Residency::add(std::unique_ptr<Unit> unit) {
  const std::lock_guard lock(mutex_);
  unit->residency = this;
  policy_.add(*unit);
  for (const auto& managed : unit->storages) {
    managed->unit = unit.get();
    managed->point_to(nullptr);
  }
  units_.push_back(std::move(unit));
  return *units_.back();
}

// A releaser clears `resident` and then checks `pins`; a user pins and then checks `resident`. So
// at least one of them sees the other.
void Residency::use(Unit& unit) {
  unit.pins.fetch_add(1);
  if (current_.load(std::memory_order_relaxed) == &unit && unit.resident.load() &&
      (unit.arrival.load() == 0 || unit.arrival.load() == last_awaited)) {
    return;
  }
  try {
    std::unique_lock lock(mutex_);
    if (prefetch_error_) std::rethrow_exception(std::exchange(prefetch_error_, nullptr));
    current_.store(&unit, std::memory_order_relaxed);
    policy_.use(unit.index);
    // The unit's prefetch is over, even if it came with another rank's fetch: a wish left in the
    // queue would be fetched again after the unit's release, by this rank alone.
    std::erase(prefetch_queue_, &unit);
    if (fetching_ == &unit) fetching_ = nullptr;
    if (prefetch_queue_.empty()) fetched_.notify_all();
    if (!unit.resident.load()) {
      lock.unlock();
      {
        const Span span("gather", SpanKind::kWork, unit.bytes, unit.index);
        fetch(unit, /*ahead=*/false);
      }
      lock.lock();
      unit.used = true;
    }
    await_arrival(unit);
    predict();
  } catch (...) {
    unpin(unit);
    throw;
  }
}

void Residency::await_arrival(const Unit& unit) {
  if (unit.arrived == nullptr) return;
  device::wait_on_stream(unit.arrived, pool_.device());
  last_awaited = unit.arrival.load();
}

void Residency::use_for_overwrite(Unit& unit) {
  const std::lock_guard turn(source_mutex_);  // no other thread fills it meanwhile
  unit.pins.fetch_add(1);
  {
    const std::lock_guard lock(mutex_);
    policy_.use_for_overwrite(unit.index);
    if (unit.resident.load()) return;
  }
  try {
    BufferPool::Buffer memory = room_for(unit);
    void* const place = memory.data();
    attach(unit, std::move(memory), place);
  } catch (...) {
    unpin(unit);
    throw;
  }
  const std::lock_guard lock(mutex_);
  unit.used = true;
}

bool Residency::try_release(Unit& unit) {
  if (unit.come_again > 0 && unit.pins.load() == 0) {
    --unit.come_again;
    forget_use(unit);
    return true;
  }
  if (!unit.resident.exchange(false)) return true;
  if (unit.pins.load() != 0) {
    unit.resident.store(true);
    return false;
  }
  for (const auto& managed : unit.storages) managed->point_to(nullptr);
  BufferPool::Buffer memory = std::move(unit.memory);
  if (!memory) source_->take_back(unit.index);
  if (unit.written.exchange(false) && unit.writes_back) {
    source_->write_back(unit.index, std::move(memory));
  }
  forget_use(unit);
  return true;
}

// If the unit comes back ahead of its next use, or is back already, that use must be noted:
// otherwise the unit would count as unused here, and as used on a rank where it came later.
void Residency::forget_use(Unit& unit) {
  unit.used = false;
  Unit* self = &unit;
  current_.compare_exchange_strong(self, nullptr, std::memory_order_relaxed);
}

void Residency::predict() {
  bool any = false;
  for (const size_t index : policy_.expected()) {
    Unit* const next = units_[index].get();
    if (next->resident.load() || next == fetching_) continue;
    if (std::find(prefetch_queue_.begin(), prefetch_queue_.end(), next) != prefetch_queue_.end())
      continue;
    prefetch_queue_.push_back(next);
    any = true;
  }
  if (any) prefetch_requested_.notify_one();
}

// A releaser that gives up because of a pin shows the unit as released for a moment, under the
// lock. A unit fetched ahead is wanted only until it is used, and if there is room.
bool Residency::is_wanted(const Unit& unit, bool ahead) {
  {
    const std::lock_guard lock(mutex_);
    if (unit.resident.load() || (ahead && fetching_ != &unit)) return false;
  }
  return !ahead || source_->has_room_ahead(unit.index);  // may release units, which locks mutex_
}

Unit& Residency::at(size_t index) {
  const std::lock_guard lock(mutex_);
  return *units_.at(index);
}

void Residency::attach(Unit& unit, BufferPool::Buffer memory, void* place,
                       std::shared_ptr<c10::Event> arrived) {
  const std::lock_guard lock(mutex_);
  // A rank that is ahead of us has released the unit and wants it again. Ours stays, since
  // operations may be reading it; our next release only counts down come_again.
  if (unit.resident.load()) {
    ++unit.come_again;
    return;
  }
  unit.memory = std::move(memory);
  unit.arrived = std::move(arrived);
  unit.arrival.store(unit.arrived == nullptr ? 0 : ++arrivals_);
  for (const auto& managed : unit.storages) managed->point_to(place);
  unit.used = false;
  unit.resident.store(true);
}

BufferPool::Buffer Residency::room_for(const Unit& unit) {
  try {
    return pool_.take(unit.bytes);
  } catch (const c10::OutOfMemoryError& cause) {
    const Unit* largest = &unit;
    const std::lock_guard lock(mutex_);
    for (const auto& other : units_) {
      if (other->bytes > largest->bytes) largest = other.get();
    }
    device::throw_out_of_memory(
        cause,
        fmt::format("the parameters of unit '{}' ({})", unit.name, format_byte_size(unit.bytes)),
        fmt::format("unit '{}' ({})", largest->name, format_byte_size(largest->bytes)));
  }
}

void Residency::fetch(Unit& unit, bool ahead) {
  const std::lock_guard turn(source_mutex_);
  {
    const std::lock_guard lock(mutex_);
    device::wait_on_stream(changed_, pool_.device());
  }
  while (is_wanted(unit, ahead)) {
    std::optional<Span> span;
    if (ahead) span.emplace("prefetch", SpanKind::kWork, unit.bytes, unit.index);
    Unit& next = at(source_->agree(unit.index));
    BufferPool::Buffer memory;
    std::shared_ptr<c10::Event> arrived;
    void* place = source_->lend(next.index);
    if (place == nullptr) {
      memory = room_for(next);
      place = memory.data();
      source_->fill(next.index, place);
      arrived = device::mark_stream(pool_.device());
    }
    attach(next, std::move(memory), place, std::move(arrived));
  }
}

void Residency::run_prefetch() {
  device::use_own_stream(pool_.device());
  std::unique_lock lock(mutex_);
  while (true) {
    prefetch_requested_.wait(lock, [&] { return stopping_ || !prefetch_queue_.empty(); });
    if (stopping_) return;
    fetching_ = prefetch_queue_.front();
    prefetch_queue_.pop_front();
    Unit& unit = *fetching_;
    lock.unlock();
    std::exception_ptr error;
    try {
      fetch(unit, /*ahead=*/true);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    fetching_ = nullptr;
    if (error && !prefetch_error_) prefetch_error_ = error;
    if (prefetch_queue_.empty()) fetched_.notify_all();
  }
}

// A unit fetched ahead and not used yet stays: on other ranks it may still be in flight.
void Residency::release(Unit& unit) {
  const std::lock_guard lock(mutex_);
  if (unit.used) try_release(unit);
}

void Residency::let_go(Unit& unit) {
  const std::lock_guard lock(mutex_);
  unit.sticky = false;
  try_release(unit);
}

// The other ranks depend on us for what they fetch ahead, so all prefetches are completed.
void Residency::finish_fetching(std::unique_lock<std::mutex>& lock) {
  fetched_.wait(lock, [&] { return prefetch_queue_.empty() && !fetching_; });
}

void Residency::release_all() {
  std::unique_lock lock(mutex_);
  finish_fetching(lock);
  changed_ = device::mark_stream(pool_.device());
  for (const auto& unit : units_) {
    unit->come_again = 0;  // those arrivals had the old values
    if (try_release(*unit)) continue;
    throw Error(ErrorCode::kUsage,
                fmt::format("the parameters of unit '{}' are in use while they change", unit->name),
                {.subject = unit->name,
                 .hint = "take optimizer steps outside of summon_full_parameters and while no "
                         "other thread uses the model"});
  }
  current_.store(nullptr, std::memory_order_relaxed);
}

void Residency::end_of_pass() {
  const std::lock_guard lock(mutex_);
  policy_.end_of_pass();
}

uint64_t Residency::order_hash() {
  const std::lock_guard lock(mutex_);
  return policy_.order_hash();
}

void Residency::stop_prefetching() {
  const std::lock_guard lock(mutex_);
  policy_.stop_prefetching();
}

}  // namespace coupler::residency

namespace coupler {

struct FullParameters::State {
  std::vector<residency::Unit*> units;  // pinned
  bool writeback = false;

  ~State() {
    for (residency::Unit* unit : units) {
      if (writeback) unit->residency->store(*unit);
      unit->writable.fetch_sub(1);
      residency::Residency::unpin(*unit);
      // Other ranks own the rest of the unit; the next use gathers what they stored.
      unit->residency->release(*unit);
    }
  }
};

FullParameters::FullParameters(const std::vector<at::Tensor>& parameters, bool writeback)
    : state_(std::make_unique<State>()) {
  state_->writeback = writeback;
  for (const at::Tensor& parameter : parameters) {
    const residency::ManagedStorage* const managed = residency::managed_storage_of(parameter);
    // What a device map placed has one owner, and cannot be written to.
    if (managed == nullptr || managed->unit->placed) continue;
    residency::Unit* const unit = managed->unit;
    if (std::find(state_->units.begin(), state_->units.end(), unit) != state_->units.end()) {
      continue;
    }
    unit->residency->use(*unit);
    unit->writable.fetch_add(1);
    state_->units.push_back(unit);
  }
}

FullParameters::FullParameters(FullParameters&&) noexcept = default;
FullParameters::~FullParameters() = default;

}  // namespace coupler
