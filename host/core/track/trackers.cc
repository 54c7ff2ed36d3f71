#include "track/trackers.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "base/log.h"

namespace coupler {

Trackers::Trackers(const std::vector<std::shared_ptr<Tracker>>& trackers, const TrackerRun& run,
                   const TrackerOptions& options)
    : end_timeout_(options.end_timeout) {
  if (options.queue_length < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("TrackerOptions: queue_length is {}", options.queue_length),
                {.subject = "queue_length", .hint = "set it to at least 1"});
  }
  if (options.flush_every.count() < 1 || options.end_timeout.count() < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("TrackerOptions: flush_every is {} ms and end_timeout {} ms",
                            options.flush_every.count(), options.end_timeout.count()),
                {.subject = "flush_every",
                 .hint = "flush_every must be at least 1 ms, and end_timeout not negative"});
  }
  for (const auto& tracker : trackers) tracker->start(run);
  TrackerQueueLimits limits;
  limits.length = static_cast<size_t>(options.queue_length);
  limits.flush_every = options.flush_every;
  for (const auto& tracker : trackers) {
    queues_.push_back(std::make_unique<TrackerQueue>(tracker, limits));
    if (log_enabled(LogLevel::kInfo, "track")) {
      coupler::log(LogLevel::kInfo, "track",
                   fmt::format("tracker '{}': {}", tracker->name(), tracker->location()));
    }
  }
}

Trackers::~Trackers() { end(); }

void Trackers::log(TrackValues values, std::optional<int64_t> step) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  auto entry = std::make_shared<TrackedStep>();
  entry->values = std::move(values);
  entry->step = step.value_or(next_step_);
  entry->time = std::chrono::duration<double>(now).count();
  next_step_ = entry->step + 1;
  const std::shared_ptr<const TrackedStep> shared = std::move(entry);
  for (const auto& queue : queues_) queue->push(shared);
}

std::shared_ptr<Tracker> Trackers::find(const std::string& name) const {
  for (const auto& queue : queues_) {
    if (queue->tracker()->name() == name) return queue->tracker();
  }
  return nullptr;
}

std::vector<std::string> Trackers::names() const {
  std::vector<std::string> result;
  for (const auto& queue : queues_) result.push_back(queue->tracker()->name());
  return result;
}

void Trackers::end() {
  if (std::exchange(ended_, true)) return;
  const auto deadline = TrackerQueue::Clock::now() + end_timeout_;
  for (const auto& queue : queues_) queue->end(deadline);
  for (const auto& queue : queues_) queue->wait_ended();
}

}  // namespace coupler
