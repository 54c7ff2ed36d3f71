#include "shm/placement.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace db::shm {
namespace {

constexpr int32_t kMostNodes = 1024;

}  // namespace

int32_t current_node() {
  unsigned cpu = 0, node = 0;
  return syscall(SYS_getcpu, &cpu, &node, nullptr) == 0 ? static_cast<int32_t>(node) : 0;
}

std::vector<PlacedRange> plan_placement(const Layout& layout, const std::vector<int32_t>& nodes) {
  std::vector<PlacedRange> ranges;
  if (std::all_of(nodes.begin(), nodes.end(), [&](int32_t node) { return node == nodes[0]; }))
    return ranges;
  // Neighbors on one node become one range.
  const auto add = [&](uint64_t offset, uint64_t bytes, int32_t node) {
    if (!ranges.empty() && ranges.back().node == node &&
        ranges.back().offset + ranges.back().bytes == offset) {
      ranges.back().bytes += bytes;
    } else {
      ranges.push_back({offset, bytes, node});
    }
  };
  const size_t ranks = nodes.size();
  for (size_t rank = 0; rank < ranks; ++rank)
    add(layout.slots + rank * layout.slot_stride, layout.slot_stride, nodes[rank]);
  for (size_t rank = 0; rank < ranks; ++rank)
    add(layout.staging + rank * layout.staging_stride, layout.staging_stride, nodes[rank]);
  for (size_t pair = 0; pair < ranks * ranks; ++pair)
    add(layout.rings + pair * layout.ring_stride, layout.ring_stride, nodes[pair % ranks]);
  return ranges;
}

std::string place(uint8_t* base, const std::vector<PlacedRange>& ranges) {
  constexpr int32_t kBits = 8 * sizeof(unsigned long);
  for (const PlacedRange& range : ranges) {
    if (range.node < 0 || range.node >= kMostNodes) continue;  // no such node: the kernel decides
    std::array<unsigned long, kMostNodes / kBits> mask{};
    mask[static_cast<size_t>(range.node / kBits)] = 1UL << (range.node % kBits);
    if (syscall(SYS_mbind, base + range.offset, range.bytes, MPOL_PREFERRED, mask.data(),
                kMostNodes + 1, 0) != 0)
      return "mbind to node " + std::to_string(range.node) + ": " + std::strerror(errno);
  }
  return "";
}

}  // namespace db::shm
