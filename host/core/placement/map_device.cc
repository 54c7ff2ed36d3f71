#include <coupler/error.h>
#include <coupler/map_device.h>
#include <fmt/format.h>

#include <charconv>

#include "base/file_text.h"

namespace coupler {

MapDevice::MapDevice(int index) : index_(index) {
  if (index < 0)
    throw Error(ErrorCode::kInvalidArgument, fmt::format("there is no accelerator {}", index),
                {.subject = std::to_string(index), .hint = "number accelerators from 0"});
}

MapDevice::MapDevice(const char* name) : MapDevice(std::string_view(name)) {}

MapDevice::MapDevice(std::string_view name) : index_(static_cast<int>(Place::kCpu)) {
  if (name == "cpu") return;
  if (name == "disk") {
    index_ = static_cast<int>(Place::kDisk);
    return;
  }
  std::string_view digits = name;
  if (digits.starts_with("cuda:")) digits.remove_prefix(5);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index_);
  if (error != std::errc() || end != digits.data() + digits.size() || index_ < 0)
    throw Error(ErrorCode::kInvalidArgument, fmt::format("'{}' is not a device", shown(name)),
                {.subject = shown(name),
                 .hint = "give the number of an accelerator from 0, \"cpu\" or \"disk\""});
}

std::string MapDevice::to_string() const {
  if (is_cpu()) return "cpu";
  return is_disk() ? "disk" : std::to_string(index_);
}

}  // namespace coupler
