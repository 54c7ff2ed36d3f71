// MaxMemory: how much of a model each device may hold. A value; any thread.
//
//   coupler::MaxMemory memory = {{0, "10GiB"}, {1, "10GB"}, {"cpu", "30GiB"}};
//
// A device that is not named gets nothing, but for the disk, which holds whatever is left over
// without a limit, named or not.
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

// Bytes, as a number or as people write them: "10GiB" is 10 × 1024³, "10GB" 10 × 1000³. Throws
// Error(kInvalidArgument) below 0 and for other words; "10Gb", which could be bits, is none.
class ByteCount {
 public:
  // Implicit, so that a bound can be written down as a number or a text.
  template <class Integer, class = std::enable_if_t<std::is_integral_v<Integer>>>
  ByteCount(Integer bytes)  // NOLINT(google-explicit-constructor)
      : bytes_(checked(bytes < 0, static_cast<uint64_t>(bytes))) {}
  ByteCount(const char* text);         // NOLINT(google-explicit-constructor)
  ByteCount(const std::string& text);  // NOLINT(google-explicit-constructor)

  // As a number.
  uint64_t bytes() const { return bytes_; }

 private:
  static uint64_t checked(bool negative, uint64_t bytes);

  uint64_t bytes_;
};

class MaxMemory {
 public:
  MaxMemory() = default;
  // {{0, "20GiB"}, {"cpu", "60GiB"}}.
  MaxMemory(std::initializer_list<std::pair<MapDevice, ByteCount>> devices);

  // Replaces or adds.
  void set(MapDevice device, ByteCount bytes) { bytes_[device] = bytes.bytes(); }
  bool empty() const { return bytes_.empty(); }
  // Nothing for a device that is not named.
  std::optional<uint64_t> of(MapDevice device) const;
  // Accelerators by number, then the CPU, then the disk.
  const std::map<MapDevice, uint64_t>& devices() const { return bytes_; }

  friend bool operator==(const MaxMemory& a, const MaxMemory& b) { return a.bytes_ == b.bytes_; }
  friend bool operator!=(const MaxMemory& a, const MaxMemory& b) { return !(a == b); }

 private:
  std::map<MapDevice, uint64_t> bytes_;
};

// All of the free memory of these accelerators, by number, and what the machine says a program can
// still take ("cpu"; 0 where it says nothing).
MaxMemory get_max_memory(const std::vector<std::pair<int, uint64_t>>& free_accelerator_memory);

// What a program can still take of the machine's memory: MemAvailable of /proc/meminfo, and no more
// than the limit of its control group leaves. 0 where the machine does not say.
uint64_t available_memory();

}  // namespace coupler
