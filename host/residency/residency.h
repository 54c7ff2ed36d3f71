// Residency: the units of one model and which of them are in memory. The intercept (intercept.h)
// calls use() before every operation on a parameter: what is not there is filled from the source,
// units not in use are released to make room, and what is likely to be used next is fetched ahead
// by a thread of its own. On a device that thread has a stream of its own: events order what it
// brings with the streams of those who use it, and no thread waits for the device.
//
// [any-thread], except the constructor and the destructor. Which units are resident after
// the same uses is the same on every rank: releases follow the order of uses, not time.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "residency/buffer_pool.h"
#include "residency/source.h"
#include "residency/unit.h"
#include "residency/use_order.h"

namespace coupler {

struct ResidencyOptions {
  int prefetch = 0;       // units fetched ahead; 0: none, and no thread
  size_t live_bytes = 0;  // of units that are not sticky; what is used or fetched ahead always may
  // Whether every rank fetches the same units (from its peers), so that none may be given up before
  // it was used.
  bool shared = true;
  // Until the order of uses is known: units are taken to be used in the order in which they were
  // added. Where they are not, some are fetched for nothing.
  bool in_order = false;
};

class Residency {
 public:
  // pool: where units' memory comes from; outlives this.
  Residency(std::unique_ptr<Source> source, BufferPool& pool, const ResidencyOptions& options);
  // Parameters must not be used afterwards.
  ~Residency();
  Residency(const Residency&) = delete;
  Residency& operator=(const Residency&) = delete;

  // Adds a unit, released; unit->index, residency and homes' unit are filled in. Its memory has
  // `bytes` bytes.
  Unit& add(std::unique_ptr<Unit> unit);
  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }

  // Makes the unit resident and pins it. Throws Error naming unit and cause; then it is not pinned.
  void use(Unit& unit);
  // The same for one who will write to all of it: what it held need not be fetched. Not by a
  // residency that is shared.
  void use_blank(Unit& unit);
  static void unpin(Unit& unit) { unit.pins.fetch_sub(1); }

  // Releases a unit that was used and is not pinned; else leaves it.
  void release(Unit& unit);
  // The values have changed: releases every unit. Throws Error(kUsage) where one is pinned.
  void release_all();
  // A pass over the model is over: nothing is predicted to follow.
  void end_of_pass();
  // Of the orders in which units were used so far: what is fetched ahead follows them. Ranks
  // compare it, and stop where theirs differ: from then on units are fetched when they are needed.
  uint64_t order_hash();
  void stop_fetching_ahead();
  // Hands the source what a unit holds; it must be pinned.
  void store(Unit& unit);

 private:
  void note_use(Unit& unit);             // mutex_ held
  void make_room(const Unit& unit);      // mutex_ held
  bool try_release(Unit& unit);          // mutex_ held
  void forget_use(Unit& unit);           // mutex_ held
  void predict();                        // mutex_ held
  void await_arrival(const Unit& unit);  // mutex_ held
  void finish_fetching(std::unique_lock<std::mutex>& lock);
  bool is_wanted(const Unit& unit, bool ahead);
  Unit& at(size_t index);
  // memory: none where the source lends what is at `place`.
  BufferPool::Buffer room_for(const Unit& unit);
  void attach(Unit& unit, BufferPool::Buffer memory, void* place,
              std::shared_ptr<c10::Event> arrived = nullptr);
  void fetch(Unit& unit, bool ahead);
  void fetch_ahead();
  bool is_expected(const Unit& unit) const;  // mutex_ held

  const std::unique_ptr<Source> source_;
  const ResidencyOptions options_;
  BufferPool& pool_;
  std::vector<std::unique_ptr<Unit>> units_;

  std::mutex source_mutex_;  // one fill at a time; taken before mutex_
  std::mutex mutex_;
  std::atomic<Unit*> current_{nullptr};
  UseOrder order_;
  uint64_t clock_ = 0;
  uint64_t arrivals_ = 0;
  std::shared_ptr<c10::Event> changed_;  // values, before which nothing may be fetched
  std::vector<Unit*> expected_;          // by the prediction, nearest first
  std::vector<Unit*> candidates_;        // make_room's own, kept for its memory

  int prefetch_;  // options_.prefetch, until stop_fetching_ahead
  std::deque<Unit*> wishes_;
  Unit* fetching_ = nullptr;  // by thread_; null again where it is not to any more
  std::condition_variable wished_, fetched_;
  std::exception_ptr ahead_error_;  // of fetch_ahead; rethrown by the next use
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace coupler
