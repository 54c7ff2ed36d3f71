#include "conductor.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <chrono>
#include <utility>

namespace coupler::checkpoint {

using model::Action;
using model::Event;
using model::Fault;

namespace {

// Far longer than a call takes: a rank that makes no progress is a failure, not a hanging test.
constexpr auto kPatience = std::chrono::seconds(60);

}  // namespace

thread_local Conductor::Seat* Conductor::seat_ = nullptr;

Conductor::Conductor() {
  for (Seat*& seat : at_) seat = &seats_.emplace_back(this);
}

void Conductor::leave() {
  Seat& seat = *std::exchange(seat_, nullptr);
  const std::lock_guard lock(seat.conductor->mutex_);
  seat.gone = true;
  seat.conductor->changed_.notify_all();
}

bool Conductor::is_rank() { return seat_ != nullptr; }

bool Conductor::is_dead() {
  if (seat_ == nullptr) return false;
  const std::lock_guard lock(seat_->conductor->mutex_);
  return seat_->dead;
}

bool Conductor::is_cut_off() {
  if (seat_ == nullptr) return false;
  const std::lock_guard lock(seat_->conductor->mutex_);
  return seat_->cut_off;
}

Conductor::Turn Conductor::stop(Action action) {
  if (seat_ == nullptr) return {.free = true};
  Seat& seat = *seat_;
  Conductor& all = *seat.conductor;
  std::unique_lock lock(all.mutex_);
  seat.at = action;
  all.changed_.notify_all();
  seat.changed.wait(lock, [&] { return all.free_ || seat.dead || seat.next; });
  seat.at.reset();
  const auto next = std::exchange(seat.next, std::nullopt);
  return {.event = next.value_or(Event{.action = action}), .free = !next, .dead = seat.dead};
}

std::string Conductor::go(const Event& event) {
  std::unique_lock lock(mutex_);
  Seat& seat = seat_of(event.rank);
  const auto wait = [&] {
    return changed_.wait_for(lock, kPatience, [&] { return seat.is_still(); });
  };
  if (!wait()) return "goes on without stopping";
  if (seat.gone) return "has done everything";
  if (seat.waits) return "waits for another rank";
  if (*seat.at != event.action)
    return "is about to do this: " + model::to_string({{.action = *seat.at, .rank = event.rank}});
  seat.next = event;
  seat.at.reset();
  seat.changed.notify_all();
  return wait() ? "" : "does not stop again";
}

void Conductor::kill(int survivor) {
  const std::lock_guard lock(mutex_);
  for (int rank = 0; rank < model::kRanks; ++rank) {
    Seat*& seat = at_.at(static_cast<size_t>(rank));
    seat->cut_off = true;
    if (rank == survivor)
      at_.at(model::kSurvivor) = seat;
    else
      seat->dead = true;
    seat->changed.notify_all();
    seat = &seats_.emplace_back(this);
  }
}

void Conductor::free() {
  const std::lock_guard lock(mutex_);
  free_ = true;
  for (Seat& seat : seats_) seat.changed.notify_all();
}

// The store as seen by one rank. Messages of a killed job reach no other rank.
class ConductedStore : public store::Store {
 public:
  explicit ConductedStore(std::shared_ptr<store::Store> store) : store_(std::move(store)) {}

  void set(const std::string& key, const std::string& value) override {
    if (key.ends_with("/result")) Conductor::stop(Action::kTell);
    check();
    store_->set(key, value);
  }
  std::optional<std::string> get(const std::string& key,
                                 std::chrono::nanoseconds timeout) override {
    // Rank 0 collects all reports, one after the other.
    if (key.ends_with("/files/1"))
      collects_late_ = Conductor::stop(Action::kCollect).event.fault == Fault::kTimeout;
    if (key.ends_with("/result")) Conductor::stop(Action::kLearn);
    check();
    if (key.find("/files/") != std::string::npos && collects_late_) timeout = {};
    auto value = store_->get(key, std::chrono::nanoseconds(0));
    if (value || timeout.count() == 0) return value;
    const Waiting waiting;
    return store_->get(key, timeout);
  }
  int64_t add(const std::string& key, int64_t delta) override { return store_->add(key, delta); }

 private:
  struct Waiting {
    Waiting() { set(true); }
    ~Waiting() { set(false); }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;
    static void set(bool waits) {
      Conductor::Seat* const seat = Conductor::seat_;
      if (seat == nullptr) return;
      const std::lock_guard lock(seat->conductor->mutex_);
      seat->waits = waits;
      seat->conductor->changed_.notify_all();
    }
  };
  static void check() {
    if (Conductor::is_cut_off()) throw Error(ErrorCode::kPeerLost, "the job was killed");
  }

  std::shared_ptr<store::Store> store_;
  bool collects_late_ = false;
};

std::shared_ptr<store::Store> Conductor::conducted(std::shared_ptr<store::Store> store) {
  return std::make_shared<ConductedStore>(std::move(store));
}

}  // namespace coupler::checkpoint
