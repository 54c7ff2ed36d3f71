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
#include "base/log.h"
#include "base/text.h"
#include "track/trackers.h"

namespace coupler {
namespace {

// Suggests alternatives to an unknown tracker, such as one that Accelerate has.
std::string hint_for(const std::string& name, const std::vector<std::string>& known) {
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

TrackedImage take_image(const LogImage& image) {
  if (!image.pixels.defined()) return image_of_file(image.name, image.file, image.caption);
  const auto refuse = [&](const std::string& what) {
    fail_argument(fmt::format("image '{}' is {}", image.name, what), image.name,
                  "give [height, width], or with 1, 3 or 4 channels [height, width, channels] or "
                  "[channels, height, width]");
  };
  const auto is_channels = [](int64_t size) { return size == 1 || size == 3 || size == 4; };
  at::Tensor pixels = image.pixels.detach();
  const std::string shape = fmt::format("of shape [{}]", fmt::join(pixels.sizes(), ", "));
  if (pixels.dim() == 2) pixels = pixels.unsqueeze(-1);
  if (pixels.dim() != 3) refuse(shape);
  if (!is_channels(pixels.size(2))) {
    if (!is_channels(pixels.size(0))) refuse(shape);
    pixels = pixels.permute({1, 2, 0});
  }
  if (pixels.is_floating_point()) {
    pixels = pixels.to(at::kCPU, at::kFloat).nan_to_num(0).clamp(0, 1).mul(255).round();
  } else if (pixels.scalar_type() != at::kByte) {
    refuse(fmt::format("of {}; the pixels must be uint8, or floating-point from 0 to 1",
                       c10::toString(pixels.scalar_type())));
  }
  pixels = pixels.to(at::kCPU, at::kByte).contiguous();
  const auto* const first = pixels.const_data_ptr<uint8_t>();
  return image_of_pixels(image.name, pixels.size(1), pixels.size(0), pixels.size(2),
                         {first, first + pixels.numel()}, image.caption);
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
  for (const auto& [name, values] : options.init_kwargs) {
    std::vector<std::string> known = track::tracker_names();
    known.insert(known.end(), names_.begin(), names_.end());
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    fail_argument(fmt::format("init_kwargs: there is no tracker '{}'", name), name,
                  hint_for(name, known));
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
  // Without trackers, do not wait for a device.
  if (logs("log")) trackers_->log(take_values(std::move(values), "log"), step);
}

bool Tracking::logs(const char* call) const {
  if (trackers_ == nullptr || ended_) {
    fail_usage(fmt::format("{} was called {}", call,
                           ended_ ? "after end_training" : "before init_trackers"),
               call, "call accelerator.init_trackers(project) first, on every rank");
  }
  return !trackers_->empty();
}

void Tracking::log_images(const std::vector<LogImage>& images, std::optional<int64_t> step) {
  if (!logs("log_images")) return;
  track::TrackedMedia media;
  for (const LogImage& image : images) {
    if (image.name.empty()) {
      fail_argument("log_images: an image has no name", "log_images", "give each image a name");
    }
    media.images.push_back(take_image(image));
  }
  trackers_->log_media(std::move(media), step);
}

void Tracking::log_table(const TrackedTable& table, std::optional<int64_t> step) {
  if (!logs("log_table")) return;
  if (table.name.empty() || table.columns.empty()) {
    fail_argument("log_table: the table has no name or no columns", "log_table",
                  "give it both, as in {\"samples\", {\"text\", \"loss\"}, rows}");
  }
  for (size_t row = 0; row < table.rows.size(); ++row) {
    if (table.rows[row].size() == table.columns.size()) continue;
    fail_argument(fmt::format("log_table: row {} of '{}' has {} values for {} columns", row,
                              table.name, table.rows[row].size(), table.columns.size()),
                  table.name, "give each row a value for each column");
  }
  track::TrackedMedia media;
  media.tables.push_back(table);
  trackers_->log_media(std::move(media), step);
}

void Tracking::log_artifact(const std::string& path, const std::string& name,
                            std::optional<int64_t> step) {
  if (!logs("log_artifact")) return;
  const std::filesystem::path given(path);
  TrackedArtifact artifact{.path = path,
                           .name = !name.empty() ? name
                                   : given.has_filename()
                                       ? given.filename().string()
                                       : given.parent_path().filename().string()};
  std::error_code error;
  if (!std::filesystem::exists(given, error)) {
    throw Error(ErrorCode::kIo, fmt::format("log_artifact: {} is not there", path),
                {.subject = path, .hint = "write the file first; it is read until end_training"});
  }
  if (artifact.name.empty() || artifact.name == "." || artifact.name == ".." ||
      artifact.name.find('/') != std::string::npos) {
    fail_argument(fmt::format("log_artifact: '{}' is not a valid name", artifact.name), path,
                  "give the artifact a name without slashes");
  }
  track::TrackedMedia media;
  media.artifacts.push_back(std::move(artifact));
  trackers_->log_media(std::move(media), step);
}

void Tracking::warn_if_unused(const config::TrainingConfig& settings, int rank) {
  if (rank != 0 || settings.log_with.empty() || trackers_ != nullptr) return;
  if (std::exchange(warned_, true)) return;
  coupler::log(LogLevel::kWarning, "track",
               fmt::format("training.log_with names {}, but nothing was logged: the program never "
                           "calls accelerator.init_trackers",
                           fmt::join(settings.log_with, ", ")));
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

void Accelerator::log_images(const std::vector<LogImage>& images, std::optional<int64_t> step) {
  impl_->tracking.log_images(images, step);
}

void Accelerator::log_table(const TrackedTable& table, std::optional<int64_t> step) {
  impl_->tracking.log_table(table, step);
}

void Accelerator::log_artifact(const std::string& path, const std::string& name,
                               std::optional<int64_t> step) {
  impl_->tracking.log_artifact(path, name, step);
}

std::shared_ptr<Tracker> Accelerator::get_tracker(const std::string& name) const {
  return impl_->tracking.find(name);
}

void Accelerator::end_training(CallSite) {
  impl_->checkpoints->end_training();
  if (impl_->profile != nullptr) impl_->profile->finish();
  if (impl_->dry_run == nullptr) impl_->tracking.warn_if_unused(impl_->config.training, rank());
  impl_->tracking.end();
}

}  // namespace coupler
