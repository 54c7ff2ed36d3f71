#include <coupler/device_map.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include "base/file_text.h"

namespace coupler {

DeviceMap::DeviceMap(std::initializer_list<Entry> entries) {
  for (const auto& [path, device] : entries) {
    if (index_.find(path) != index_.end())
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("the device map has '{}' twice", shown(path)),
                  {.subject = path, .hint = "give each path once"});
    set(path, device);
  }
}

void DeviceMap::set(const std::string& path, MapDevice device) {
  const auto [place, fresh] = index_.try_emplace(path, entries_.size());
  if (fresh)
    entries_.emplace_back(path, device);
  else
    entries_[place->second].second = device;
}

std::optional<MapDevice> DeviceMap::device_of(std::string_view path) const {
  while (true) {
    const auto found = index_.find(path);
    if (found != index_.end()) return entries_[found->second].second;
    if (path.empty()) return std::nullopt;
    const size_t dot = path.rfind('.');
    path = dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
  }
}

}  // namespace coupler
