// Profile: what [profile] asks for: in some passes through the loop's body LibTorch's profiler runs
// and spans (log/span.h) are recorded; then each rank writes its trace, in Chrome's and Perfetto's
// format, and a summary for `coupler report`. Outside of these passes nothing is recorded and
// nothing costs. Used by the thread that trains; record() by all.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "config/config.h"
#include "log/span.h"
#include "rendezvous/process_info.h"

namespace coupler {

class Communicator;

// What a span recorder keeps of one.
struct KeptSpan {
  SpanRecord span;
  int64_t thread;  // the system's number
};

class Profile final : public SpanRecorder {
 public:
  // Null where profile.dir is empty, or where nothing can be written there, which is logged: the
  // job goes on. Removes what an earlier one has left there. Measures how far this rank's clock is
  // from rank 0's where ranks are on several machines. Collective.
  static std::unique_ptr<Profile> make(const ProfileConfig& config, const ProcessInfo& process,
                                       bool on_cuda, Communicator& comm);
  ~Profile() override;

  // The end of a pass through the loop's body.
  void step();
  // Ends a round that is under way and, on rank 0, joins the ranks' traces once they are there.
  void finish();

  void record(const SpanRecord& span) override;

 private:
  Profile(const ProfileConfig& config, const ProcessInfo& process, bool on_cuda, int64_t offset);

  void begin_round();
  void end_round();
  void write(const std::string& trace);

  const ProfileConfig config_;
  const ProcessInfo process_;
  const bool on_cuda_;
  const int64_t clock_offset_;  // nanoseconds that rank 0's clock is ahead of ours
  int64_t steps_ = 0;
  int64_t round_ = 0;
  bool recorded_ = false;  // any round; or it was said that there is none
  enum class State { kIdle, kWarmup, kActive } state_ = State::kIdle;
  std::vector<int64_t> step_ends_;  // of the round: its beginning, then the end of each step
  std::mutex mutex_;
  std::vector<KeptSpan> spans_;  // of the round
};

}  // namespace coupler
