#include "placement/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/byte_size.h"
#include "placement/check_map.h"
#include "placement/sizes.h"

namespace coupler {
namespace {

struct Row {
  std::string first, last;  // paths; last is empty for a single entry
  MapDevice device;
  uint64_t bytes = 0, each = 0;
};

bool all_digits(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// "a.b.7" as "a.b." and 7.
std::optional<std::pair<std::string, int64_t>> split_number(const std::string& path) {
  const size_t dot = path.rfind('.');
  const size_t begin = dot == std::string::npos ? 0 : dot + 1;
  if (!all_digits(std::string_view(path).substr(begin)) || path.size() - begin > 9)
    return std::nullopt;
  return std::pair(path.substr(0, begin), std::stoll(path.substr(begin)));
}

bool follows(const Row& row, const Row& next) {
  const auto a = split_number(row.last.empty() ? row.first : row.last),
             b = split_number(next.first);
  return a && b && a->first == b->first && a->second + 1 == b->second &&
         row.device == next.device && row.each == next.each;
}

std::string name_of(const Row& row) {
  if (row.first.empty()) return "(the model)";
  return row.last.empty() ? row.first
                          : fmt::format("{} … {}", row.first, split_number(row.last)->second);
}

// The entry that applies to a tensor: the longest path among it and its ancestors.
std::string entry_of(const std::vector<std::string>& paths, std::string path) {
  while (!path.empty() && !std::binary_search(paths.begin(), paths.end(), path)) {
    const size_t dot = path.rfind('.');
    path.resize(dot == std::string::npos ? 0 : dot);
  }
  return path;
}

// The width in characters, not bytes ("…" counts as one).
size_t width_of(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

std::string padded(const std::string& text, size_t width) {
  return text + std::string(width - std::min(width, width_of(text)), ' ');
}

std::string bar(double share) {
  constexpr int kCells = 24;
  const int full = std::clamp(static_cast<int>(std::lround(share * kCells)), 0, kCells);
  std::string text;
  for (int i = 0; i < kCells; ++i) text += i < full ? "█" : "░";
  return text;
}

}  // namespace

std::string table_of(const ModuleTree& tree, const DeviceMap& map,
                     const DeviceMapOptions& options) {
  check_map(tree, map);
  const TreeSizes sizes(tree, {options.dtype, options.special_dtypes});
  std::vector<std::string> paths;
  for (const auto& entry : map.entries()) paths.push_back(entry.first);
  std::sort(paths.begin(), paths.end());
  std::map<std::string, uint64_t> bytes;
  std::map<MapDevice, uint64_t> used;
  for (const auto& [device, most] : options.max_memory.devices()) used[device] = 0;
  for (size_t t = 0; t < tree.tensors.size(); ++t) {
    if (sizes.owner(t) != t) continue;
    bytes[entry_of(paths, tree.tensors[t].name)] += sizes.bytes(t);
    used[*map.device_of(tree.tensors[t].name)] += sizes.bytes(t);
  }

  std::vector<Row> rows;
  for (const auto& [path, device] : map.entries()) {
    const Row row{path, "", device, bytes[path], bytes[path]};
    if (!rows.empty() && follows(rows.back(), row)) {
      rows.back().last = path;
      rows.back().bytes += row.bytes;
    } else {
      rows.push_back(row);
    }
  }
  size_t width = 4;
  for (const Row& row : rows) width = std::max(width, width_of(name_of(row)));
  std::string text = fmt::format("{}  device  {:>10}\n", padded("part", width), "size");
  for (const Row& row : rows)
    text += fmt::format("{}  {:<6}  {:>10}\n", padded(name_of(row), width), row.device.to_string(),
                        format_byte_size(row.bytes));
  text += "\n";
  uint64_t fullest = 1;
  for (const auto& [device, taken] : used) fullest = std::max(fullest, taken);
  for (const auto& [device, taken] : used) {
    const auto most = device.is_disk() ? std::nullopt : options.max_memory.of(device);
    const double share = static_cast<double>(taken) /
                         static_cast<double>(std::max<uint64_t>(most ? *most : fullest, 1));
    text += fmt::format("{:<4}  {}  {:>10}{}\n", device.to_string(), bar(share),
                        format_byte_size(taken),
                        most ? fmt::format(" of {}", format_byte_size(*most)) : "");
  }
  return text;
}

}  // namespace coupler
