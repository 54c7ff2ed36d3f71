#include "common/shrink.h"

#include <algorithm>
#include <string>

namespace db {

Failure check_excluded(int32_t rank, int32_t size, const int32_t* excluded, uint64_t count,
                       uint64_t flags, std::vector<int32_t>* ranks) {
  const auto invalid = [](const std::string& text) { return Failure::invalid("shrink: " + text); };
  if ((flags & ~uint64_t{DB_SHRINK_ABORT}) != 0)
    return invalid("unknown flags " + std::to_string(flags));
  if (excluded == nullptr || count == 0) return invalid("no rank is excluded");
  if (count >= static_cast<uint64_t>(size))
    return invalid(std::to_string(count) + " of " + std::to_string(size) +
                   " ranks are excluded: none would remain");
  ranks->assign(excluded, excluded + count);
  std::sort(ranks->begin(), ranks->end());
  for (size_t i = 0; i < ranks->size(); ++i) {
    const int32_t one = (*ranks)[i];
    const std::string name = "rank " + std::to_string(one);
    if (one < 0 || one >= size)
      return invalid(name + " is excluded, but ranks go from 0 to " + std::to_string(size - 1));
    if (i > 0 && one == (*ranks)[i - 1]) return invalid(name + " is excluded twice");
    if (one == rank) return invalid(name + " is excluded and must not call it");
  }
  return {};
}

}  // namespace db
