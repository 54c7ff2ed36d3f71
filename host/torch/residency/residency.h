// Residency: the units of one model and which of them are in memory. The intercept (intercept.h)
// calls use() before every operation on a parameter: a missing unit is filled from the source,
// units not in use are released to make room, and a separate thread fetches ahead the units likely
// to be used next. On a device that thread has its own stream: events order its fetches with the
// streams of their users, and no thread waits for the device.
//
// [any-thread], except the constructor and the destructor. After the same uses, the same units are
// resident on every rank: releases follow the order of uses, not time.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "residency/buffer_pool.h"
#include "residency/residency_policy.h"
#include "residency/unit.h"

namespace coupler::residency {

class Residency {
 public:
  // pool: where units' memory comes from; must outlive this.
  Residency(std::unique_ptr<Source> source, BufferPool& pool, const ResidencyOptions& options);
  // Parameters must not be used afterwards.
  ~Residency();
  Residency(const Residency&) = delete;
  Residency& operator=(const Residency&) = delete;

  // Adds a unit, released; fills in its index, its residency and its homes' unit. Its memory has
  // unit->bytes bytes.
  Unit& add(std::unique_ptr<Unit> unit);
  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }

  // Makes the unit resident and pins it. Throws Error naming unit and cause; then it is not pinned.
  void use(Unit& unit);
  // The same for a caller that overwrites the whole unit, so its old values need not be fetched.
  // Not for a shared residency.
  void use_for_overwrite(Unit& unit);
  static void unpin(Unit& unit) { unit.pins.fetch_sub(1); }

  // Releases a unit that was used and is not pinned; leaves any other.
  void release(Unit& unit);
  // Makes a sticky unit one like others: it is released now, or when its use is over. Sources may
  // call it. Not for a shared residency.
  void let_go(Unit& unit);
  // The values have changed: releases every unit. Throws Error(kUsage) if one is pinned.
  void release_all();
  // Ends a pass over the model: no unit is predicted to follow.
  void end_of_pass();
  // A hash of the orders in which units were used so far, which prefetching follows. Ranks compare
  // it and stop prefetching if theirs differ: units are then fetched when they are needed.
  uint64_t order_hash();
  void stop_prefetching();
  // Passes the unit's values to the source; the unit must be pinned.
  void store(Unit& unit) { source_->store(unit.index, unit.memory.data()); }

 private:
  bool try_release(Unit& unit);          // mutex_ held
  void forget_use(Unit& unit);           // mutex_ held
  void predict();                        // mutex_ held
  void await_arrival(const Unit& unit);  // mutex_ held
  void finish_fetching(std::unique_lock<std::mutex>& lock);
  bool is_wanted(const Unit& unit, bool ahead);  // source_mutex_ held
  Unit& at(size_t index);
  BufferPool::Buffer room_for(const Unit& unit);
  // memory: empty if the source lends the memory at `place`.
  void attach(Unit& unit, BufferPool::Buffer memory, void* place,
              std::shared_ptr<c10::Event> arrived = nullptr);
  void fetch(Unit& unit, bool ahead);
  void run_prefetch();

  const std::unique_ptr<Source> source_;
  BufferPool& pool_;
  std::vector<std::unique_ptr<Unit>> units_;

  std::mutex source_mutex_;  // one fill at a time; taken before mutex_
  std::mutex mutex_;
  std::atomic<Unit*> current_{nullptr};
  ResidencyPolicy policy_;
  uint64_t arrivals_ = 0;
  std::shared_ptr<c10::Event> changed_;  // the values' last change, which fetches must wait for

  std::deque<Unit*> prefetch_queue_;
  Unit* fetching_ = nullptr;  // by thread_; reset to null if it need not any more
  std::condition_variable prefetch_requested_, fetched_;
  std::exception_ptr prefetch_error_;  // of run_prefetch; rethrown by the next use
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace coupler::residency
