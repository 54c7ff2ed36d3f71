// The trackers that can be selected by name: csv, jsonl, tensorboard, mlflow, and those of
// register_tracker. [any-thread]
#pragma once

#include <coupler/tracker.h>

#include <memory>
#include <string>
#include <vector>

namespace coupler {

// All of them, built-in ones first.
std::vector<std::string> tracker_names();

// Those that "all" stands for: without mlflow if MLFLOW_TRACKING_URI is not set.
std::vector<std::string> names_of_all_trackers();

// Null if there is none of that name. Throws what a registered factory throws, and
// Error(kInvalidArgument) if the factory returns null.
std::shared_ptr<Tracker> make_tracker(const std::string& name);

}  // namespace coupler
