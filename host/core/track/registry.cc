#include "track/registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "track/csv_tracker.h"
#include "track/jsonl_tracker.h"
#include "track/mlflow_tracker.h"
#include "track/tensorboard_tracker.h"

namespace coupler {
namespace {

template <class Type>
std::shared_ptr<Tracker> make() {
  return std::make_shared<Type>();
}

struct Registry {
  std::mutex mutex;
  std::vector<std::pair<std::string, TrackerFactory>> entries = {
      {"csv", make<CsvTracker>},
      {"jsonl", make<JsonLinesTracker>},
      {"tensorboard", make<TensorBoardTracker>},
      {"mlflow", make<MlflowTracker>}};
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

std::vector<std::string> tracker_names() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  std::vector<std::string> names;
  for (const auto& entry : all.entries) names.push_back(entry.first);
  return names;
}

std::vector<std::string> names_of_all_trackers() {
  std::vector<std::string> names = tracker_names();
  const char* uri = std::getenv("MLFLOW_TRACKING_URI");
  if (uri == nullptr || *uri == '\0') {
    names.erase(std::remove(names.begin(), names.end(), "mlflow"), names.end());
  }
  return names;
}

std::shared_ptr<Tracker> make_tracker(const std::string& name) {
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
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the function given to register_tracker for '{}' returned null", name),
                {.subject = name, .hint = "return a tracker from it"});
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
