#include "base/span.h"

#include <ctime>
#include <mutex>
#include <set>
#include <shared_mutex>

namespace coupler {
namespace {

// Held shared by threads that are inside the recorder.
std::shared_mutex in_use;

}  // namespace

std::atomic<SpanRecorder*> detail::span_recorder{nullptr};

int64_t span_clock() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return int64_t{1'000'000'000} * now.tv_sec + now.tv_nsec;
}

const char* lasting_name(const std::string& name) {
  static auto* const mutex = new std::mutex();
  static auto* const names = new std::set<std::string>();
  const std::lock_guard lock(*mutex);
  return names->insert(name).first->c_str();
}

void record_span(const SpanRecord& span) {
  const std::shared_lock lock(in_use);
  if (SpanRecorder* recorder = detail::span_recorder.load()) recorder->record(span);
}

void set_span_recorder(SpanRecorder* recorder) {
  const std::unique_lock lock(in_use);
  detail::span_recorder = recorder;
}

}  // namespace coupler
