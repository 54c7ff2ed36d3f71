#include "cli/launch/stop_schedule.h"

#include <algorithm>
#include <csignal>

namespace coupler::cli {

void StopSchedule::failed(Deadline first, std::optional<Deadline> cause) {
  if (stage_ == Stage::kRunning) {
    stage_ = Stage::kSettling;
  }
  if (stage_ == Stage::kSettling) {
    const Deadline latest = first + times_.settle_without_cause;
    next_ = cause ? std::min(*cause + times_.settle, latest) : latest;
  }
}

void StopSchedule::interrupted(Deadline when) {
  ++interrupts_;
  told_ = true;
  if (stage_ == Stage::kKilled) {
    return;
  }
  stage_ = Stage::kTerminating;
  next_ = interrupts_ > 1 ? when : when + times_.interrupted;
}

std::optional<int> StopSchedule::due(Deadline now) {
  if (!next_ || now < *next_) {
    return std::nullopt;
  }
  told_ = true;
  if (stage_ == Stage::kSettling) {
    stage_ = Stage::kTerminating;
    next_ = now + times_.terminate;
    return SIGTERM;
  }
  stage_ = Stage::kKilled;
  next_.reset();
  return SIGKILL;
}

}  // namespace coupler::cli
