// Span: a stretch of time with a name (a collective, a wait, a gather), told to whoever records
// them. While nobody does, which is the rule, a span costs one load of an atomic. Names are texts
// that live for ever. [any-thread]; a span begins and ends on one thread, or is told as a whole.
#pragma once

#include <atomic>
#include <cstdint>

namespace coupler {

enum class SpanKind : uint8_t {
  kOperation,  // between its submission and the end: what the network does
  kWait,       // a thread stands still for it
  kWork,       // a thread does it
};

struct SpanRecord {
  const char* name;  // "all_reduce"
  SpanKind kind;
  int64_t begin, end;   // nanoseconds of span_clock()
  uint64_t bytes = 0;   // that it moved on this rank; 0: not said
  uint64_t number = 0;  // of an operation; else of the unit
};

// Told of every span that ends while it is set. record is called by many threads.
class SpanRecorder {
 public:
  virtual ~SpanRecorder() = default;
  virtual void record(const SpanRecord& span) = 0;
};

namespace detail {
extern std::atomic<SpanRecorder*> span_recorder;
}

inline bool spans_recorded() {
  return detail::span_recorder.load(std::memory_order_relaxed) != nullptr;
}
int64_t span_clock();  // CLOCK_REALTIME, as LibTorch's traces have it
void record_span(const SpanRecord& span);
// One at a time, or none (null). Returns once no thread is inside the one that was set before.
void set_span_recorder(SpanRecorder* recorder);

class Span {
 public:
  Span(const char* name, SpanKind kind, uint64_t bytes = 0, uint64_t number = 0)
      : span_{name, kind, spans_recorded() ? span_clock() : 0, 0, bytes, number} {}
  ~Span() {
    if (span_.begin != 0 && spans_recorded()) {
      span_.end = span_clock();
      record_span(span_);
    }
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  SpanRecord span_;
};

}  // namespace coupler
