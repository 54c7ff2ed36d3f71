#include "empty_weights/replay_plan.h"

#include <algorithm>

namespace coupler {
namespace {

bool writes_any(const Operation& operation, const std::unordered_set<uint64_t>& storages) {
  return std::any_of(operation.outputs.begin(), operation.outputs.end(),
                     [&](const Output& out) { return storages.contains(out.place.storage); }) ||
         std::any_of(operation.inputs.begin(), operation.inputs.end(), [&](const Input& in) {
           return in.writes && storages.contains(in.place.storage);
         });
}

std::vector<uint64_t> touched_by(const Operation& operation) {
  std::vector<uint64_t> result;
  for (const Output& out : operation.outputs) result.push_back(out.place.storage);
  for (const Input& in : operation.inputs) {
    if (!in.constant.defined()) result.push_back(in.place.storage);
  }
  std::sort(result.begin(), result.end());
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

}  // namespace

// Walks backward with the set of storages whose contents are needed later (`live`). An operation
// that overwrites a whole storage ends the life before it: a weight that is initialized twice needs
// no memory between the first time and the second.
std::vector<ReplayStep> plan_replay(const std::deque<Operation>& operations,
                                    std::unordered_set<uint64_t> wanted, bool stream_end) {
  std::vector<ReplayStep> steps;
  std::unordered_set<uint64_t> live = wanted;
  bool draw = stream_end;  // the generator's state is needed later
  for (size_t i = operations.size(); i-- > 0;) {
    const Operation& operation = operations[i];
    const bool needed = writes_any(operation, live);
    if (!needed && !(operation.random && draw)) continue;
    ReplayStep step{.operation = i, .skip_draw = false, .finished = {}, .dead = {}};
    if (!needed && operation.after) {
      step.skip_draw = true;
      draw = false;
      steps.push_back(std::move(step));
      continue;
    }
    if (operation.random) draw = !operation.before;
    for (const uint64_t storage : touched_by(operation)) {
      if (wanted.erase(storage) != 0) {
        step.finished.push_back(storage);
        step.dead.push_back(storage);
      } else if (!live.contains(storage)) {
        step.dead.push_back(storage);
      }
    }
    for (const Output& out : operation.outputs) live.erase(out.place.storage);
    for (const Input& in : operation.inputs) {
      if (in.covers) live.erase(in.place.storage);
    }
    for (const Input& in : operation.inputs) {
      if (in.reads && !in.constant.defined()) live.insert(in.place.storage);
    }
    steps.push_back(std::move(step));
  }
  std::reverse(steps.begin(), steps.end());
  return steps;
}

}  // namespace coupler
