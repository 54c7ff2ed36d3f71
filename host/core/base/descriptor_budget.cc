#include "base/descriptor_budget.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>

#include "base/log.h"

namespace coupler {
namespace {

// For everything else the process opens: pipes and pidfds of its children, libraries, logs.
constexpr rlim_t kReserve = 64;

}  // namespace

size_t descriptors_for_strangers(size_t members, size_t strangers) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return strangers;
  }
  // A launcher holds up to three descriptors for each process it has started.
  const rlim_t for_members = kReserve + 4 * static_cast<rlim_t>(members);
  const rlim_t wanted = for_members + strangers;
  // Small jobs keep the limit: programs that use select() need low descriptor numbers.
  if (for_members > limit.rlim_cur / 2 && wanted > limit.rlim_cur &&
      limit.rlim_cur < limit.rlim_max) {
    rlimit raised = limit;
    raised.rlim_cur = std::min(wanted, limit.rlim_max);
    if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) {
      limit = raised;
    }
  }
  if (for_members > limit.rlim_cur) {
    log(LogLevel::kWarning, "store",
        fmt::format(
            "{} processes may need {} open files, but only {} are allowed: raise `ulimit -Hn`",
            members, for_members, limit.rlim_cur));
  }
  // At most a quarter: the rest belongs to the job, whatever strangers do.
  const size_t quarter = std::max<size_t>(8, static_cast<size_t>(limit.rlim_cur / 4));
  return std::min(strangers + members, quarter);
}

}  // namespace coupler
