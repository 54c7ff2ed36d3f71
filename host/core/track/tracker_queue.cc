#include "track/tracker_queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"

namespace coupler::track {

struct TrackerQueue::State {
  // One of the two is null.
  struct Entry {
    std::shared_ptr<const TrackedStep> values;
    std::shared_ptr<const TrackedMedia> media;
  };

  State(std::shared_ptr<Tracker> its, const TrackerQueueLimits& given)
      : tracker(std::move(its)), limits(given), name(tracker->name()) {}

  enum class Outcome { kDone, kFailed, kOutOfTime };

  // Repeats the call while it throws TrackerUnavailable. `failures` counts consecutive failures of
  // this kind of call; the tracker is disabled when they reach `most`.
  template <class Call>
  Outcome attempt(const char* what, int& failures, int most, Call&& call);
  // Sleeps before the next attempt; returns whether there is time for one.
  bool wait_to_retry(std::chrono::milliseconds& pause);
  Outcome fail(const char* what, int failures, int most, const std::string& message);
  std::vector<Entry> take();
  void write(const std::vector<Entry>& entries);
  void deliver(const Entry& entry);
  void push(Entry entry, size_t bytes);
  void warn(const std::string& text) const { log(LogLevel::kWarning, "track", text); }

  const std::shared_ptr<Tracker> tracker;
  const TrackerQueueLimits limits;
  const std::string name;

  mutable std::mutex mutex;
  std::condition_variable wake;   // wakes the thread
  std::condition_variable ended;  // of wait_ended
  std::vector<Entry> waiting;
  size_t waiting_bytes = 0;  // of media
  size_t in_hand = 0;        // taken from the queue and not written yet
  int64_t pushed = 0;
  int64_t dropped = 0;  // the queue was full, or the tracker disabled
  int64_t failed = 0;   // the tracker threw
  bool ending = false;
  bool done = false;
  bool disabled = false;
  Clock::time_point deadline = Clock::time_point::max();

  // Only the thread uses these.
  int log_failures = 0;  // consecutive, like the next
  int flush_failures = 0;
  bool unavailable = false;
  size_t media_done = 0;  // of the entry that is being delivered: a repeated call skips them
  std::set<std::string> not_held;  // kinds of media of which a warning has said so
};

template <class Call>
TrackerQueue::State::Outcome TrackerQueue::State::attempt(const char* what, int& failures, int most,
                                                          Call&& call) {
  std::chrono::milliseconds pause = limits.first_retry;
  for (;;) {
    try {
      call();
      failures = 0;
      if (std::exchange(unavailable, false)) warn(fmt::format("tracker '{}' works again", name));
      return Outcome::kDone;
    } catch (const TrackerUnavailable& error) {
      if (!std::exchange(unavailable, true)) {
        warn(fmt::format(
            "tracker '{}' is unavailable; training continues, and up to {} entries are kept while "
            "it retries: {}",
            name, limits.length, error.what()));
      }
      if (!wait_to_retry(pause)) return Outcome::kOutOfTime;
    } catch (const std::exception& error) {
      return fail(what, ++failures, most, error.what());
    } catch (...) {
      return fail(what, ++failures, most, "an exception that is not a std::exception");
    }
  }
}

bool TrackerQueue::State::wait_to_retry(std::chrono::milliseconds& pause) {
  std::unique_lock lock(mutex);
  const bool was_ending = ending;
  const auto next = std::min(Clock::now() + pause, deadline);
  // end() wakes it once, for a last attempt without delay.
  wake.wait_until(lock, next, [&] { return ending && !was_ending; });
  pause = std::min(pause * 2, limits.longest_retry);
  return Clock::now() < deadline;
}

TrackerQueue::State::Outcome TrackerQueue::State::fail(const char* what, int failures, int most,
                                                       const std::string& message) {
  if (failures < most) {
    if (failures == 1) {
      warn(fmt::format("tracker '{}' failed in {}: {}", name, what, message));
    }
    return Outcome::kFailed;
  }
  warn(fmt::format("tracker '{}' failed in {}{} and is disabled; training continues without it: {}",
                   name, what, most > 1 ? fmt::format(" {} times in a row", failures) : "",
                   message));
  const std::lock_guard lock(mutex);
  disabled = true;
  dropped += static_cast<int64_t>(waiting.size());
  waiting.clear();
  waiting_bytes = 0;
  return Outcome::kFailed;
}

std::vector<TrackerQueue::State::Entry> TrackerQueue::State::take() {
  std::unique_lock lock(mutex);
  const auto urgent = [&] {
    return ending || waiting.size() > limits.length / 2 || waiting_bytes > limits.media_bytes / 2;
  };
  wake.wait_for(lock, limits.flush_every, urgent);
  std::vector<Entry> taken;
  taken.reserve(waiting.capacity());  // swapped into the queue, so that pushes need not grow it
  taken.swap(waiting);
  waiting_bytes = 0;
  in_hand = taken.size();
  return taken;
}

size_t TrackedMedia::bytes() const {
  size_t sum = 0;
  for (const TrackedImage& image : images) sum += image.bytes.size();
  for (const TrackedTable& table : tables) {
    for (const auto& row : table.rows) {
      sum += row.size() * sizeof(TrackValue);
      for (const TrackValue& value : row) {
        if (const auto* text = std::get_if<std::string>(&value)) sum += text->size();
      }
    }
  }
  return sum;
}

void TrackerQueue::State::deliver(const Entry& entry) {
  if (entry.values != nullptr) return tracker->log(*entry.values);
  const TrackedMedia& media = *entry.media;
  size_t index = 0;
  const auto each = [&](const char* kind, const auto& items, const auto& give) {
    for (const auto& item : items) {
      if (index++ < media_done) continue;
      const bool held = give(item);
      ++media_done;
      if (held || !not_held.insert(kind).second) continue;
      warn(fmt::format("tracker '{}' cannot hold {}; they are left out", name, kind));
    }
  };
  each("images", media.images, [&](const TrackedImage& image) {
    return tracker->log_image(image, media.step, media.time);
  });
  each("tables", media.tables, [&](const TrackedTable& table) {
    return tracker->log_table(table, media.step, media.time);
  });
  each("artifacts", media.artifacts, [&](const TrackedArtifact& artifact) {
    return tracker->log_artifact(artifact, media.step, media.time);
  });
  media_done = 0;
}

void TrackerQueue::State::write(const std::vector<Entry>& entries) {
  size_t held = 0;  // logged, but possibly not flushed yet
  for (const Entry& entry : entries) {
    const Outcome outcome = attempt("log", log_failures, limits.failures, [&] { deliver(entry); });
    if (outcome == Outcome::kOutOfTime) return;  // in_hand are the left-over entries
    media_done = 0;
    if (outcome == Outcome::kDone) {
      ++held;
      continue;
    }
    const std::lock_guard lock(mutex);
    --in_hand;
    ++failed;
    if (!disabled) continue;
    dropped += static_cast<int64_t>(in_hand - held);
    in_hand = held;
    break;
  }
  if (held == 0) return;
  const Outcome outcome =
      attempt("flush", flush_failures, limits.failures, [&] { tracker->flush(); });
  if (outcome == Outcome::kOutOfTime) return;
  const std::lock_guard lock(mutex);
  in_hand = 0;
  if (outcome == Outcome::kFailed) failed += static_cast<int64_t>(held);
}

void TrackerQueue::run(const std::shared_ptr<State>& state) {
  State& s = *state;
  int failures = 0;
  bool go_on =
      s.attempt("connect", failures, 1, [&] { s.tracker->connect(); }) == State::Outcome::kDone;
  while (go_on) {
    s.write(s.take());
    const std::lock_guard lock(s.mutex);
    if (s.disabled || s.in_hand > 0) {
      go_on = false;
    } else if (s.ending && s.waiting.empty()) {
      break;
    }
  }
  if (go_on) s.attempt("finish", failures, 1, [&] { s.tracker->finish(); });
  const std::lock_guard lock(s.mutex);
  s.done = true;
  s.ended.notify_all();
}

TrackerQueue::TrackerQueue(std::shared_ptr<Tracker> tracker, const TrackerQueueLimits& limits)
    : state_(std::make_shared<State>(std::move(tracker), limits)) {
  // Detached: a tracker that never returns must not block the program's exit. wait_ended waits for
  // `done` instead.
  std::thread([state = state_] { run(state); }).detach();
}

TrackerQueue::~TrackerQueue() { end(Clock::now()); }

const std::shared_ptr<Tracker>& TrackerQueue::tracker() const { return state_->tracker; }

void TrackerQueue::State::push(Entry entry, size_t bytes) {
  bool first_drop = false;
  bool urgent = false;
  size_t held = 0;
  {
    const std::lock_guard lock(mutex);
    ++pushed;
    held = waiting.size();
    if (disabled || held >= limits.length || bytes > limits.media_bytes - waiting_bytes) {
      first_drop = dropped++ == 0 && !disabled;
    } else {
      waiting.push_back(std::move(entry));
      waiting_bytes += bytes;
      urgent = waiting.size() == limits.length / 2 + 1 || waiting_bytes > limits.media_bytes / 2;
    }
  }
  if (urgent) wake.notify_one();
  if (first_drop) {
    warn(
        fmt::format("tracker '{}' is too slow: {} entries are waiting, and new ones are dropped "
                    "until there is room",
                    name, held));
  }
}

void TrackerQueue::push(const std::shared_ptr<const TrackedStep>& entry) {
  state_->push({entry, nullptr}, 0);
}

void TrackerQueue::push_media(const std::shared_ptr<const TrackedMedia>& entry) {
  state_->push({nullptr, entry}, entry->bytes());
}

void TrackerQueue::end(Clock::time_point deadline) {
  const std::lock_guard lock(state_->mutex);
  if (std::exchange(state_->ending, true)) return;
  state_->deadline = deadline;
  state_->wake.notify_all();
}

void TrackerQueue::wait_ended() {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  s.ended.wait_until(lock, s.deadline, [&] { return s.done; });
  const auto left = static_cast<int64_t>(s.waiting.size() + s.in_hand);
  if (s.done && left + s.dropped + s.failed == 0) return;
  std::string text = fmt::format("tracker '{}': ", s.name);
  if (!s.done) text += "it did not finish in time; ";
  text += fmt::format("of {} entries {} were dropped, {} failed and {} were not written", s.pushed,
                      s.dropped, s.failed, left);
  lock.unlock();
  s.warn(text);
}

int64_t TrackerQueue::lost() const {
  const std::lock_guard lock(state_->mutex);
  return state_->dropped + state_->failed +
         (state_->done ? static_cast<int64_t>(state_->waiting.size() + state_->in_hand) : 0);
}

}  // namespace coupler::track
