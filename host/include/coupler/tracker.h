// Tracker: one place where the values that a run logs go: a file, a server, a class of the
// program's own. Accelerator::init_trackers starts those that training.log_with names;
// docs/tracking.md.
//
// Threads: start() runs on the thread that calls init_trackers. Everything behind it runs on a
// thread of the tracker's own, one call at a time, with values that wait in a queue meanwhile, so
// that it may be slow, fail or never return: training goes on.
//
//   class Console : public coupler::Tracker {
//    public:
//     std::string name() const override { return "console"; }
//     void log(const coupler::TrackedStep& entry) override { … }
//   };
//   coupler::register_tracker("console", [] { return std::make_shared<Console>(); });
#pragma once

#include <coupler/error.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace coupler {

// What can be logged.
using TrackValue = std::variant<double, int64_t, bool, std::string>;
using TrackValues = std::vector<std::pair<std::string, TrackValue>>;  // in the order of logging

// What one call of Accelerator::log said.
struct TrackedStep {
  TrackValues values;  // names are not empty; may repeat
  int64_t step = 0;    // as the program counts
  double time = 0;     // seconds since 1970
};

// What init_trackers was told.
struct TrackerRun {
  std::string project;   // its name
  std::string run_name;  // empty: none was given
  std::string folder;    // for files: the logging folder and in it the project's; may not exist yet
  TrackValues config;    // the run's hyper-parameters
  int rank = 0;          // of this process
};

// Thrown by a tracker out of connect, log, flush or finish: the same call is made again later,
// after half a second at first and half a minute at most, while what is logged waits in the queue.
// Said once until it works again.
class TrackerUnavailable : public Error {
 public:
  // message: what does not answer.
  explicit TrackerUnavailable(const std::string& message, ErrorDetail detail = {})
      : Error(ErrorCode::kIo, message, std::move(detail)) {}
};

class Tracker {
 public:
  virtual ~Tracker() = default;

  // By which get_tracker finds it and messages name it. [any-thread]
  virtual std::string name() const = 0;

  // false: it runs on every rank, each with what that rank logs. [any-thread]
  virtual bool main_process_only() const { return true; }

  // Checks what can be checked at once and opens files. What it throws, init_trackers throws.
  virtual void start(const TrackerRun& /*run*/) {}

  // ---- On the tracker's thread. An exception other than TrackerUnavailable is said and loses what
  // the call was about; three in a row disable the tracker. ----
  // Once, before the first log: what may wait for somebody else.
  virtual void connect() {}
  virtual void log(const TrackedStep& entry) = 0;
  // After all that was logged lately, about twice a second: whatever log held back goes out.
  virtual void flush() {}
  // Once, after the last flush.
  virtual void finish() {}

  // Where a person finds what it wrote: a file or an address; empty where that cannot be said.
  // [any-thread] after start.
  virtual std::string location() const { return ""; }
};

// For Accelerator::init_trackers.
struct TrackerOptions {
  // Instead of training.log_with: names, "all" among them.
  std::vector<std::string> log_with = {};
  // Of the program's own, besides those that are named.
  std::vector<std::shared_ptr<Tracker>> trackers = {};
  std::string run_name = {};  // MLflow's name of the run; empty: the server makes one
  // How many calls of log may wait for a tracker; what is logged while so many do is dropped and
  // counted.
  int64_t queue_length = 10000;
  // How long a tracker collects values before it writes them.
  std::chrono::milliseconds flush_every = std::chrono::milliseconds(500);
  // How long end_training waits for all trackers together.
  std::chrono::milliseconds end_timeout = std::chrono::seconds(10);
};

// Makes a tracker for a run.
using TrackerFactory = std::function<std::shared_ptr<Tracker>()>;

// Has `training.log_with` know a tracker by this name. To be called before init_trackers. Throws
// Error(kUsage) where the name is taken, or is none: letters, digits, - and _. [any-thread]
void register_tracker(const std::string& name, TrackerFactory make);

}  // namespace coupler
