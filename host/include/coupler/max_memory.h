// MaxMemory: how much of a model each device may hold. A value; any thread.
//
//   coupler::MaxMemory memory = {{0, "10GiB"}, {1, "10GB"}, {"cpu", "30GiB"}};
//
// A device that is not named gets nothing, except the disk, which holds the remainder without a
// limit, whether named or not.
#pragma once

#include <coupler/map_device.h>

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace coupler {

// A number of bytes, given as a number or a string: "10GiB" is 10 × 1024³, "10GB" 10 × 1000³.
// Throws Error(kInvalidArgument) below 0 and for other strings, including "10Gb", which could mean
// bits.
class ByteCount {
 public:
  // Implicit, so that a limit can be written as a number or a string.
  template <class Integer, class = std::enable_if_t<std::is_integral_v<Integer>>>
  ByteCount(Integer bytes)  // NOLINT(google-explicit-constructor)
      : bytes_(checked(bytes < 0, static_cast<uint64_t>(bytes))) {}
  ByteCount(const char* text);         // NOLINT(google-explicit-constructor)
  ByteCount(const std::string& text);  // NOLINT(google-explicit-constructor)

  // The number of bytes.
  uint64_t bytes() const { return bytes_; }

 private:
  static uint64_t checked(bool negative, uint64_t bytes);

  uint64_t bytes_;
};

class MaxMemory {
 public:
  MaxMemory() = default;
  // For example {{0, "20GiB"}, {"cpu", "60GiB"}}.
  MaxMemory(std::initializer_list<std::pair<MapDevice, ByteCount>> devices);

  // Adds a device or replaces its limit.
  void set(MapDevice device, ByteCount bytes) { bytes_[device] = bytes.bytes(); }
  bool empty() const { return bytes_.empty(); }
  // The limit of a device; nullopt if it is not named.
  std::optional<uint64_t> of(MapDevice device) const;
  // In order: accelerators by number, then the CPU, then the disk.
  const std::map<MapDevice, uint64_t>& devices() const { return bytes_; }

  friend bool operator==(const MaxMemory& a, const MaxMemory& b) { return a.bytes_ == b.bytes_; }
  friend bool operator!=(const MaxMemory& a, const MaxMemory& b) { return !(a == b); }

 private:
  std::map<MapDevice, uint64_t> bytes_;
};

// Returns the free memory of these accelerators, by number, and available_memory() as "cpu".
MaxMemory get_max_memory(const std::vector<std::pair<int, uint64_t>>& free_accelerator_memory);

// Returns how much more memory a program can allocate: MemAvailable of /proc/meminfo, capped by the
// limit of its control group. 0 if unknown.
uint64_t available_memory();

}  // namespace coupler
