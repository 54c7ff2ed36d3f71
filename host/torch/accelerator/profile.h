// Profile: implements [profile]. In the passes through the loop's body that it selects, LibTorch's
// profiler runs and spans (base/span.h) are recorded. Then each rank writes its trace, in the
// format of Chrome and Perfetto, and a summary for `coupler report`. Outside of these passes it
// records nothing and costs nothing. Used by the training thread; any thread may call record().
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/span.h"
#include "config/config.h"
#include "rendezvous/process_info.h"

namespace coupler {

namespace comm {
class Communicator;
}

// A recorded span.
struct KeptSpan {
  SpanRecord span;
  int64_t thread;  // the system's thread id
};

class Profile final : public SpanRecorder {
 public:
  // Returns null if profile.dir is empty, or if it cannot be written to; the latter is logged, and
  // the job continues. Removes the files of an earlier job. If ranks are on several machines,
  // measures the offset of this rank's clock from rank 0's. Collective.
  static std::unique_ptr<Profile> make(const config::ProfileConfig& config,
                                       const rendezvous::ProcessInfo& process, bool on_cuda,
                                       comm::Communicator& comm);
  ~Profile() override;

  // Called at the end of each pass through the loop's body.
  void step();
  // Ends the current round. On rank 0, waits for the ranks' traces and merges them.
  void finish();

  void record(const SpanRecord& span) override;

 private:
  Profile(const config::ProfileConfig& config, const rendezvous::ProcessInfo& process, bool on_cuda,
          int64_t offset);

  void begin_round();
  void end_round();
  void write(const std::string& trace);

  const config::ProfileConfig config_;
  const rendezvous::ProcessInfo process_;
  const bool on_cuda_;
  const int64_t clock_offset_;  // nanoseconds that rank 0's clock is ahead of this one's
  int64_t steps_ = 0;
  int64_t round_ = 0;
  bool recorded_ = false;  // a round was recorded, or its absence was logged
  enum class State { kIdle, kWarmup, kActive } state_ = State::kIdle;
  std::vector<int64_t> step_ends_;  // of the round: its start, then the end of each step
  std::mutex mutex_;
  std::vector<KeptSpan> spans_;  // of the round
};

}  // namespace coupler
