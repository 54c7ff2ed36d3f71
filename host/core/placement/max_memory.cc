#include <coupler/error.h>
#include <coupler/max_memory.h>
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <limits>

#include "base/byte_size.h"

namespace coupler {
namespace {

// parse_byte_size rejects 0; here it turns a device off.
uint64_t parse_limit(std::string_view text) {
  const std::string what = "max_memory";
  const size_t digits = std::min(text.find_first_not_of('0'), text.size());
  const bool zero = digits > 0 && (digits == text.size() || text[digits] == ' ' ||
                                   (text[digits] >= 'A' && text[digits] <= 'T'));
  if (!zero) return parse_byte_size(text, what);
  parse_byte_size("1" + std::string(text.substr(digits)), what);  // its unit
  return 0;
}

std::optional<uint64_t> number_in(const char* file) {
  std::ifstream in(file);
  uint64_t number = 0;
  return in >> number ? std::optional(number) : std::nullopt;
}

std::optional<uint64_t> mem_available() {
  std::ifstream in("/proc/meminfo");
  std::string key, unit;
  for (uint64_t number = 0; in >> key >> number; std::getline(in, unit))
    if (key == "MemAvailable:") return number * 1024;
  return std::nullopt;
}

}  // namespace

ByteCount::ByteCount(const char* text) : bytes_(parse_limit(text)) {}
ByteCount::ByteCount(const std::string& text) : bytes_(parse_limit(text)) {}

uint64_t ByteCount::checked(bool negative, uint64_t bytes) {
  if (negative || bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("max_memory: {} bytes is not a valid amount of memory",
                    static_cast<int64_t>(bytes)),
        {.subject = "max_memory", .hint = "give a number from 0, or a string such as 10GiB"});
  return bytes;
}

MaxMemory::MaxMemory(std::initializer_list<std::pair<MapDevice, ByteCount>> devices) {
  for (const auto& [device, bytes] : devices)
    if (!bytes_.emplace(device, bytes.bytes()).second)
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("max_memory: device {} is given twice", device.to_string()),
                  {.subject = device.to_string(), .hint = "give each device once"});
}

std::optional<uint64_t> MaxMemory::of(MapDevice device) const {
  const auto found = bytes_.find(device);
  return found == bytes_.end() ? std::nullopt : std::optional(found->second);
}

uint64_t available_memory() {
  uint64_t available = mem_available().value_or(0);
  const auto limit = number_in("/sys/fs/cgroup/memory.max");
  const auto used = number_in("/sys/fs/cgroup/memory.current");
  if (limit && used) available = std::min(available, *limit - std::min(*limit, *used));
  return available;
}

MaxMemory get_max_memory(const std::vector<std::pair<int, uint64_t>>& free_accelerator_memory) {
  MaxMemory result;
  for (const auto& [index, bytes] : free_accelerator_memory) result.set(index, bytes);
  result.set(MapDevice::cpu(), available_memory());
  return result;
}

}  // namespace coupler
