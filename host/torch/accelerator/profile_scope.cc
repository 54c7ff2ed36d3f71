// Accelerator::profile: profiles a part of the program.
#include <coupler/accelerator.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <limits>

#include "accelerator/accelerator_impl.h"
#include "accelerator/profile.h"
#include "base/log.h"

namespace coupler {
namespace {

void require_at_least_0(const char* name, int64_t value) {
  if (value >= 0) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("profile: {} is {}, but must be at least 0", name, value),
              {.subject = name, .hint = "it counts passes through the loop's body"});
}

ProfileConfig config_of(const ProfileOptions& options) {
  if (options.dir.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "profile: dir is empty",
                {.subject = "dir", .hint = "name the folder that traces are written to"});
  }
  require_at_least_0("skip_first", options.skip_first);
  require_at_least_0("wait", options.wait);
  require_at_least_0("warmup", options.warmup);
  require_at_least_0("active", options.active);
  require_at_least_0("repeat", options.repeat);
  const bool whole = options.active == 0;
  // More passes than any loop has.
  constexpr int64_t kEndless = std::numeric_limits<int64_t>::max() / 4;
  return {.dir = options.dir,
          .skip_first = options.skip_first,
          .wait = options.wait,
          .warmup = options.warmup,
          .active = whole ? kEndless : options.active,
          .repeat = whole ? 0 : options.repeat,
          .record_shapes = options.record_shapes,
          .profile_memory = options.profile_memory,
          .with_stack = options.with_stack,
          .with_flops = options.with_flops};
}

}  // namespace

SyncScope Accelerator::profile(const ProfileOptions& options, CallSite) {
  Impl& impl = *impl_;
  const ProfileConfig config = config_of(options);
  const std::string& configured = impl.config.profile.dir;
  if (!configured.empty()) {
    if (rank() == 0) {
      coupler::log(LogLevel::kWarning, "train",
                   fmt::format("accelerator.profile() records nothing into {}: profile.dir is {}, "
                               "and the configured schedule applies",
                               config.dir, configured));
    }
    return SyncScope(nullptr);
  }
  if (impl.dry_run != nullptr) return SyncScope(nullptr);
  if (impl.profile != nullptr) {
    throw Error(ErrorCode::kUsage, "profile: another profile is active",
                {.subject = "profile", .hint = "end its scope before the next begins"});
  }
  impl.profile = Profile::make(config, impl.process, impl.device.is_cuda(), *impl.comm);
  return SyncScope([&impl] { impl.profile.reset(); });
}

}  // namespace coupler
