#include "accelerator/tracking.h"

#include <coupler/accelerator.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "accelerator/accelerator.h"
#include "accelerator/checkpoints.h"
#include "accelerator/profile.h"
#include "base/error.h"
#include "base/text.h"
#include "track/trackers.h"

namespace coupler {
namespace {

// Suggests alternatives to an unknown tracker, such as one that Accelerate has.
std::string hint_for(const std::string& name, const std::vector<std::string>& known) {
  if (name == "wandb") {
    return "log with \"tensorboard\" and run `wandb sync --sync-tensorboard` on its folder: "
           "docs/tracking.md";
  }
  const std::string near = nearest_name(name, known);
  const std::string others = fmt::format(
      "known trackers are {} and \"all\"; register others with "
      "coupler::register_tracker",
      fmt::join(known, ", "));
  return near.empty() ? others : fmt::format("did you mean '{}'? {}", near, others);
}

// Each name once, in the order given.
std::vector<std::string> chosen_names(const std::vector<std::string>& log_with) {
  const std::vector<std::string> known = track::tracker_names();
  std::vector<std::string> result;
  const auto add = [&](const std::string& name) {
    if (std::find(result.begin(), result.end(), name) == result.end()) result.push_back(name);
  };
  for (const std::string& name : log_with) {
    if (name == "all") {
      for (const std::string& each : track::names_of_all_trackers()) add(each);
    } else if (std::find(known.begin(), known.end(), name) == known.end()) {
      fail_config(fmt::format("unknown tracker '{}'", name), name, hint_for(name, known));
    } else {
      add(name);
    }
  }
  return result;
}

void check_project(const std::string& project) {
  const bool control = std::any_of(project.begin(), project.end(),
                                   [](char c) { return static_cast<unsigned char>(c) < 0x20; });
  if (project.empty() || project == "." || project == ".." || control ||
      project.find('/') != std::string::npos) {
    fail_argument(fmt::format("init_trackers: '{}' is not a valid project name", project), project,
                  "it is also a folder name: leave out slashes and control characters");
  }
}

TrackValues take_values(LogValues&& values, const char* call) {
  TrackValues result;
  result.reserve(values.size());
  for (auto& [name, value] : values) {
    if (name.empty()) {
      fail_argument(fmt::format("{}: a value has no name", call), "",
                    "give each value a name, as in {{\"loss\", 0.5}}");
    }
    TrackValue taken = std::move(value).take(name);
    result.emplace_back(std::move(name), std::move(taken));
  }
  return result;
}

}  // namespace

TrackValue LogValue::take(const std::string& name) && {
  if (auto* value = std::get_if<TrackValue>(&value_)) return std::move(*value);
  const at::Tensor& tensor = std::get<at::Tensor>(value_);
  if (!tensor.defined() || tensor.numel() != 1 || tensor.is_complex()) {
    const std::string what = !tensor.defined()     ? "undefined"
                             : tensor.is_complex() ? "complex"
                                                   : fmt::format("of {} elements", tensor.numel());
    fail_argument(fmt::format("log: '{}' is a tensor that is {}", name, what), name,
                  "log a number, or a real tensor of one element: loss.mean(), say");
  }
  if (tensor.scalar_type() == at::kBool) return tensor.item<bool>();
  if (at::isIntegralType(tensor.scalar_type(), /*includeBool=*/false))
    return tensor.item<int64_t>();
  return tensor.item<double>();
}

void Tracking::start(const config::TrainingConfig& settings, int rank, bool dry,
                     const std::string& project, LogValues config, const TrackerOptions& options) {
  if (trackers_ != nullptr && !ended_) {
    fail_usage("init_trackers was already called", "",
               "call it once; after end_training, which ends the trackers, it may be "
               "called again");
  }
  check_project(project);
  std::vector<std::shared_ptr<Tracker>> mine;
  names_.clear();
  const auto add = [&](const std::string& name, std::shared_ptr<Tracker> tracker) {
    names_.push_back(name);
    if (rank == 0 || !tracker->main_process_only()) mine.push_back(std::move(tracker));
  };
  const auto& wanted = options.log_with.empty() ? settings.log_with : options.log_with;
  for (const std::string& name : chosen_names(wanted)) add(name, track::make_tracker(name));
  for (const auto& tracker : options.trackers) {
    if (tracker == nullptr) {
      fail_argument("TrackerOptions::trackers holds a null pointer", "trackers", "leave it out");
    }
    add(tracker->name(), tracker);
  }
  TrackerRun run;
  run.project = project;
  run.run_name = options.run_name;
  const std::string& folder =
      settings.logging_dir.empty() ? settings.project_dir : settings.logging_dir;
  run.folder = (std::filesystem::path(folder) / project).string();
  run.rank = rank;
  not_started_.clear();
  if (dry) mine.swap(not_started_);
  if (!mine.empty()) run.config = take_values(std::move(config), "init_trackers");
  trackers_ = std::make_unique<track::Trackers>(mine, run, options);
  ended_ = false;
}

void Tracking::log(LogValues values, std::optional<int64_t> step) {
  if (trackers_ == nullptr || ended_) {
    fail_usage(ended_ ? "log was called after end_training" : "log was called before init_trackers",
               "", "call accelerator.init_trackers(project) first, on every rank");
  }
  // Without trackers, do not wait for a device.
  if (trackers_->empty()) return;
  trackers_->log(take_values(std::move(values), "log"), step);
}

std::shared_ptr<Tracker> Tracking::find(const std::string& name) const {
  if (trackers_ == nullptr || std::find(names_.begin(), names_.end(), name) == names_.end()) {
    fail_argument(fmt::format("no tracker '{}' was started", name), name,
                  trackers_ == nullptr ? "call accelerator.init_trackers first"
                  : names_.empty()     ? "none was started: name some in training.log_with"
                                   : fmt::format("started trackers: {}", fmt::join(names_, ", ")));
  }
  for (const auto& tracker : not_started_) {
    if (tracker->name() == name) return tracker;
  }
  return trackers_->find(name);
}

void Tracking::end() {
  if (trackers_ == nullptr || ended_) return;
  ended_ = true;
  trackers_->end();
}

// ---- Accelerator ----

void Accelerator::init_trackers(const std::string& project, LogValues config,
                                const TrackerOptions& options) {
  impl_->tracking.start(impl_->config.training, rank(), impl_->dry_run != nullptr, project,
                        std::move(config), options);
}

void Accelerator::log(LogValues values, std::optional<int64_t> step) {
  impl_->tracking.log(std::move(values), step);
}

std::shared_ptr<Tracker> Accelerator::get_tracker(const std::string& name) const {
  return impl_->tracking.find(name);
}

void Accelerator::end_training(CallSite) {
  impl_->checkpoints->end_training();
  if (impl_->profile != nullptr) impl_->profile->finish();
  impl_->tracking.end();
}

}  // namespace coupler
