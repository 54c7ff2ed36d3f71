// Tracker: a destination for logged values: a file, a server, or a class of
// the program's own. Accelerator::init_trackers starts those named by training.log_with; see
// docs/tracking.md.
//
// Threads: start() runs on the thread that calls init_trackers. The calls after it run one at a
// time on the tracker's own thread, fed by a queue, so a tracker may be slow, fail or never return
// without affecting training.
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
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace coupler {

// A value that can be logged, and named values.
using TrackValue = std::variant<double, int64_t, bool, std::string>;
using TrackValues = std::vector<std::pair<std::string, TrackValue>>;  // in the order of logging

// The values of one call of Accelerator::log.
struct TrackedStep {
  TrackValues values;  // names are not empty; may repeat
  int64_t step = 0;    // as counted by the program
  double time = 0;     // seconds since 1970
};

// An encoded image, as a file would have it. A figure is one, too: save it, and log its file.
struct TrackedImage {
  std::string name;          // as of a value: "samples/first"
  std::string bytes;         // the file's contents
  std::string format;        // the file's ending: "png", "jpg", …
  int64_t width = 0;         // in pixels; 0: unknown
  int64_t height = 0;        // likewise
  std::string caption = {};  // UTF-8
};

// Throw Error(kInvalidArgument) naming the image. Any thread.
//
// pixels: rows from the top, each of `width` pixels of `channels` bytes: 1 gray, 3 RGB, 4 RGBA.
TrackedImage image_of_pixels(const std::string& name, int64_t width, int64_t height,
                             int64_t channels, const std::vector<uint8_t>& pixels,
                             const std::string& caption = "");
// path: a .png, .jpg, .jpeg, .gif, .webp, .bmp or .svg file of at most 64 MiB. Throws Error(kIo) if
// it cannot be read.
TrackedImage image_of_file(const std::string& name, const std::string& path,
                           const std::string& caption = "");

// Rows of values. Each row has a value for each column.
struct TrackedTable {
  std::string name;                           // as of a value
  std::vector<std::string> columns;           // their names
  std::vector<std::vector<TrackValue>> rows;  // as many values each
};

// A file or a folder of the run: a model, a data set, a report. Trackers that hold it read it
// later, at the latest in end_training; do not change it before.
struct TrackedArtifact {
  std::string path;  // of the file or folder
  std::string name;  // under which it is kept; no slashes
};

// The arguments of init_trackers.
struct TrackerRun {
  std::string project;   // the project's name
  std::string run_name;  // empty: none was given
  std::string folder;    // for files: the project's folder in the logging folder; may not exist yet
  TrackValues config;    // the run's hyperparameters
  int rank = 0;          // of this process
  TrackValues options = {};  // TrackerOptions::init_kwargs for this tracker
};

// Thrown by a tracker from connect, log, flush or finish: the call is retried, after half a second
// at first and at most half a minute, while logged values wait in the queue. Reported once until it
// works again.
class TrackerUnavailable : public Error {
 public:
  // message: what does not respond.
  explicit TrackerUnavailable(const std::string& message, ErrorDetail detail = {})
      : Error(ErrorCode::kIo, message, std::move(detail)) {}
};

class Tracker {
 public:
  virtual ~Tracker() = default;

  // The name used by get_tracker and in messages. [any-thread]
  virtual std::string name() const = 0;

  // If false, the tracker runs on every rank with that rank's values. [any-thread]
  virtual bool main_process_only() const { return true; }

  // Performs immediate checks and opens files. init_trackers passes on what it throws.
  virtual void start(const TrackerRun& /*run*/) {}

  // ---- On the tracker's thread. An exception other than TrackerUnavailable is reported, and the
  // values of the call are lost; three in a row disable the tracker. ----
  // Called once, before the first log; may wait for a server.
  virtual void connect() {}
  virtual void log(const TrackedStep& entry) = 0;
  // step, time: as in TrackedStep. Return whether this tracker can hold them; if not, a warning
  // says so once, and they are left out.
  virtual bool log_image(const TrackedImage& /*image*/, int64_t /*step*/, double /*time*/) {
    return false;
  }
  virtual bool log_table(const TrackedTable& /*table*/, int64_t /*step*/, double /*time*/) {
    return false;
  }
  virtual bool log_artifact(const TrackedArtifact& /*artifact*/, int64_t /*step*/,
                            double /*time*/) {
    return false;
  }
  // Called about twice a second, after recent log calls: writes what log has buffered.
  virtual void flush() {}
  // Called once, after the last flush.
  virtual void finish() {}

  // Where to find the output: a file or an address; empty if unknown. [any-thread] after start.
  virtual std::string location() const { return ""; }
};

// For Accelerator::init_trackers.
struct TrackerOptions {
  // Tracker names that replace training.log_with; may include "all".
  std::vector<std::string> log_with = {};
  // The program's own trackers, in addition to the named ones.
  std::vector<std::shared_ptr<Tracker>> trackers = {};
  std::string run_name = {};  // of the run on a server; empty: the server chooses one
  // Options of a tracker, by its name: {{"wandb", {{"entity", std::string("team")}}}}.
  // docs/tracking.md lists those of the trackers of Coupler; the program's own find them in
  // TrackerRun::options.
  std::map<std::string, TrackValues> init_kwargs = {};
  // Maximum number of queued log calls per tracker; further ones are dropped and counted.
  int64_t queue_length = 10000;
  // How long a tracker collects values before it writes them.
  std::chrono::milliseconds flush_every = std::chrono::milliseconds(500);
  // How long end_training waits for all trackers together.
  std::chrono::milliseconds end_timeout = std::chrono::seconds(10);
};

// Creates a tracker for a run.
using TrackerFactory = std::function<std::shared_ptr<Tracker>()>;

// Registers a tracker under this name for `training.log_with`. Call it before init_trackers. Throws
// Error(kUsage) if the name is taken or invalid; it may have letters, digits, - and _. [any-thread]
void register_tracker(const std::string& name, TrackerFactory make);

// ProgressBar: shows a loop's progress, its rate, the time left and values such as the loss, on
// standard error. On a terminal it is one line, redrawn at most ten times per second; log lines and
// accelerator.print go above it, and of nested bars the innermost is drawn, after the counts of the
// enclosing ones. Otherwise it prints a plain line at every tenth of the way, at least two seconds
// apart, and every 30 seconds. Not thread-safe: one thread advances it; other threads may have
// their own bars.
//
//   coupler::ProgressBar bar("epoch 1", loader.size());
//   for (auto& batch : loader) { …; bar.set_value("loss", loss); bar.advance(); }
//
// Standard error counts as a terminal if isatty says so and TERM is not dumb, or if
// COUPLER_TERMINAL=<columns> is set because a pipe leads to one (as under the launcher).
// COUPLER_PROGRESS=off draws nothing, =plain only lines. There are no colors, so NO_COLOR has no
// effect.
class ProgressBar {
 public:
  // `total`: number of steps; if 0 (unknown), the bar only counts. Only the job's main process
  // draws.
  ProgressBar(std::string label, int64_t total);
  // Prints nothing unless `enabled`.
  ProgressBar(std::string label, int64_t total, bool enabled);
  ~ProgressBar();  // finishes

  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Costs one clock read, except for the few calls that draw.
  void advance(int64_t steps = 1);

  // Shows "loss 0.5213" after the bar from the next redraw on; nothing is formatted until then.
  void set_value(std::string_view name, double value);

  // Shows a short string after the values.
  void set_suffix(std::string suffix);

  // Draws the final state and ends the line; a nested bar is erased. Later calls do nothing.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;  // null if not enabled or finished
};

}  // namespace coupler
