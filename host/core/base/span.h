// Span: a named interval (a collective, a wait, a gather), passed to the recorder. Without a
// recorder, the usual case, a span costs one load of an atomic. Names are literals, or come from
// lasting_name. [any-thread]; a span begins and ends on one thread, or is passed whole to
// record_span.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace coupler {

enum class SpanKind : uint8_t {
  kOperation,  // from submission to completion: what the network does
  kBlocking,   // an operation that a thread is blocked in
  kWait,       // a thread is blocked until an operation, which has its own span, is complete
  kWork,       // a thread executes it
};

constexpr bool blocks_thread(SpanKind kind) {
  return kind == SpanKind::kBlocking || kind == SpanKind::kWait;
}

struct SpanRecord {
  const char* name;  // "all_reduce"
  SpanKind kind;
  int64_t begin, end;   // nanoseconds of span_clock()
  uint64_t bytes = 0;   // moved on this rank; 0: unknown
  uint64_t number = 0;  // of the operation or of the unit
  // Of the ranks that communicate: "tensor", "world"; null if there is none but this one.
  const char* group = nullptr;
};

// Receives every span that ends while it is set. Many threads call record.
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
int64_t span_clock();  // CLOCK_REALTIME, as in LibTorch's traces
// A copy that stays until the process ends; the same one for the same text.
const char* lasting_name(const std::string& name);
void record_span(const SpanRecord& span);
// One at a time, or none (null). Returns once no thread is inside the previous one.
void set_span_recorder(SpanRecorder* recorder);

class Span {
 public:
  Span(const char* name, SpanKind kind, uint64_t bytes = 0, uint64_t number = 0,
       const char* group = nullptr)
      : span_{name, kind, spans_recorded() ? span_clock() : 0, 0, bytes, number, group} {}
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
