#include "track/trackers.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "base/units.h"
#include "track/file_trackers.h"
#include "track/mlflow_tracker.h"
#include "track/tensorboard_tracker.h"
#include "track/trackio_tracker.h"
#include "track/wandb_tracker.h"

namespace coupler {

track::Trackers::Trackers(const std::vector<std::shared_ptr<Tracker>>& trackers,
                          const TrackerRun& run, const TrackerOptions& options)
    : end_timeout_(options.end_timeout) {
  if (options.queue_length < 1) {
    fail_argument(fmt::format("TrackerOptions: queue_length is {}", options.queue_length),
                  "queue_length", "set it to at least 1");
  }
  if (options.flush_every.count() < 1 || options.end_timeout.count() < 0) {
    fail_argument(fmt::format("TrackerOptions: flush_every is {} ms and end_timeout {} ms",
                              options.flush_every.count(), options.end_timeout.count()),
                  "flush_every", "flush_every must be at least 1 ms, and end_timeout not negative");
  }
  for (const auto& tracker : trackers) {
    TrackerRun own = run;
    const auto options_of = options.init_kwargs.find(tracker->name());
    if (options_of != options.init_kwargs.end()) own.options = options_of->second;
    tracker->start(own);
  }
  track::TrackerQueueLimits limits;
  limits.length = static_cast<size_t>(options.queue_length);
  limits.flush_every = options.flush_every;
  for (const auto& tracker : trackers) {
    queues_.push_back(std::make_unique<track::TrackerQueue>(tracker, limits));
    if (log_enabled(LogLevel::kInfo, "track")) {
      coupler::log(LogLevel::kInfo, "track",
                   fmt::format("tracker '{}': {}", tracker->name(), tracker->location()));
    }
  }
}

track::Trackers::~Trackers() { end(); }

void track::Trackers::log(TrackValues values, std::optional<int64_t> step) {
  auto entry = std::make_shared<TrackedStep>();
  entry->values = std::move(values);
  entry->step = step.value_or(next_step_);
  entry->time = seconds_since_epoch();
  next_step_ = entry->step + 1;
  const std::shared_ptr<const TrackedStep> shared = std::move(entry);
  for (const auto& queue : queues_) queue->push(shared);
}

void track::Trackers::log_media(TrackedMedia media, std::optional<int64_t> step) {
  media.step = step.value_or(std::max<int64_t>(next_step_ - 1, 0));
  media.time = seconds_since_epoch();
  const auto shared = std::make_shared<const TrackedMedia>(std::move(media));
  for (const auto& queue : queues_) queue->push_media(shared);
}

std::shared_ptr<Tracker> track::Trackers::find(const std::string& name) const {
  for (const auto& queue : queues_) {
    if (queue->tracker()->name() == name) return queue->tracker();
  }
  return nullptr;
}

void track::Trackers::end() {
  if (std::exchange(ended_, true)) return;
  const auto deadline = track::TrackerQueue::Clock::now() + end_timeout_;
  for (const auto& queue : queues_) queue->end(deadline);
  for (const auto& queue : queues_) queue->wait_ended();
}

namespace {

template <class Type>
std::shared_ptr<Tracker> make() {
  return std::make_shared<Type>();
}

struct Registry {
  std::mutex mutex;
  std::vector<std::pair<std::string, TrackerFactory>> entries = {
      {"csv", make<track::CsvTracker>},
      {"jsonl", make<track::JsonLinesTracker>},
      {"tensorboard", make<track::TensorBoardTracker>},
      {"wandb", make<track::WandbTracker>},
      {"trackio", make<track::TrackioTracker>},
      {"mlflow", make<track::MlflowTracker>}};
};

Registry& registry() {
  // Never destroyed: static objects register trackers, too.
  static auto* const instance = new Registry;
  return *instance;
}

bool is_name(const std::string& text) {
  return !text.empty() && text != "all" && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
  });
}

}  // namespace

std::vector<std::string> track::tracker_names() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  std::vector<std::string> names;
  for (const auto& entry : all.entries) names.push_back(entry.first);
  return names;
}

std::vector<std::string> track::names_of_all_trackers() {
  std::vector<std::string> names = track::tracker_names();
  if (environment_value("MLFLOW_TRACKING_URI").empty()) std::erase(names, "mlflow");
  if (environment_value("TRACKIO_DIR").empty()) std::erase(names, "trackio");
  return names;
}

std::shared_ptr<Tracker> track::make_tracker(const std::string& name) {
  Registry& all = registry();
  TrackerFactory factory;
  {
    const std::lock_guard lock(all.mutex);
    for (const auto& entry : all.entries) {
      if (entry.first == name) factory = entry.second;
    }
  }
  if (factory == nullptr) return nullptr;
  auto tracker = factory();
  if (tracker == nullptr) {
    fail_argument(
        fmt::format("the function given to register_tracker for '{}' returned null", name), name,
        "return a tracker from it");
  }
  return tracker;
}

void register_tracker(const std::string& name, TrackerFactory make) {
  if (!is_name(name) || make == nullptr) {
    throw Error(
        ErrorCode::kUsage,
        fmt::format("register_tracker: '{}' {}", name,
                    make == nullptr ? "has no function" : "is not a valid name"),
        {.subject = name, .hint = "use a name of letters, digits, - and _, other than \"all\""});
  }
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  for (const auto& entry : all.entries) {
    if (entry.first == name) {
      throw Error(ErrorCode::kUsage, fmt::format("a tracker '{}' already exists", name),
                  {.subject = name, .hint = "register it once, under a unique name"});
    }
  }
  all.entries.emplace_back(name, std::move(make));
}

}  // namespace coupler
