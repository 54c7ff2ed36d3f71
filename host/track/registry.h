// The trackers that a name can choose: csv, jsonl, tensorboard, mlflow, and those of
// register_tracker. [any-thread]
#pragma once

#include <coupler/tracker.h>

#include <memory>
#include <string>
#include <vector>

namespace coupler {

// All of them, built-in ones first.
std::vector<std::string> tracker_names();

// Those that "all" stands for: without mlflow where MLFLOW_TRACKING_URI names no server.
std::vector<std::string> names_of_all_trackers();

// Null where there is none of that name. Throws what the factory of a registered one throws, and
// Error(kInvalidArgument) where it makes none.
std::shared_ptr<Tracker> make_tracker(const std::string& name);

}  // namespace coupler
