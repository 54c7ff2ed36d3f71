#include "track/tensorboard_tracker.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>

#include "track/event_record.h"

namespace coupler {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// TensorBoard reads files in the order of their names. No two runs use the same one.
std::string file_name(double now) {
  static std::atomic<int> count{0};
  std::array<char, 256> host = {};
  if (::gethostname(host.data(), host.size() - 1) != 0) host = {"localhost"};
  return fmt::format("events.out.tfevents.{:010}.{}.{}.{}", static_cast<int64_t>(now), host.data(),
                     ::getpid(), count++);
}

}  // namespace

void TensorBoardTracker::start(const TrackerRun& run) {
  const double now = seconds_now();
  file_.open(run.folder, file_name(now));
  append_record(file_.pending(), version_event(now));
  if (!run.config.empty()) append_record(file_.pending(), hparams_start_event(now, run));
}

void TensorBoardTracker::log(const TrackedStep& entry) {
  append_record(file_.pending(), values_event(entry));
}

void TensorBoardTracker::finish() {
  if (!ended_) append_record(file_.pending(), hparams_end_event(seconds_now()));
  ended_ = true;
  file_.close();
}

}  // namespace coupler
