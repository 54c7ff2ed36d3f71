// MapDevice: a place for a part of a model: an accelerator by number, host memory, or disk. A
// value; any thread.
#pragma once

#include <string>
#include <string_view>

namespace coupler {

class MapDevice {
 public:
  // An accelerator, from 0. Throws Error(kInvalidArgument) below 0. Implicit, so that a map can be
  // written as {{"wte", 0}, {"lm_head", "cpu"}}.
  MapDevice(int index = 0);  // NOLINT(google-explicit-constructor)
  // "cpu", "disk", "0" or "cuda:0". Throws Error(kInvalidArgument) for anything else.
  MapDevice(const char* name);  // NOLINT(google-explicit-constructor)
  explicit MapDevice(std::string_view name);

  // Host memory; files on disk.
  static MapDevice cpu() { return MapDevice(Place::kCpu); }
  static MapDevice disk() { return MapDevice(Place::kDisk); }

  // The kind of place.
  bool is_cpu() const { return index_ == static_cast<int>(Place::kCpu); }
  bool is_disk() const { return index_ == static_cast<int>(Place::kDisk); }
  bool is_accelerator() const { return index_ >= 0; }
  // The accelerator's number; negative for the others.
  int index() const { return index_; }
  // "0", "cpu" or "disk".
  std::string to_string() const;

  friend bool operator==(MapDevice a, MapDevice b) { return a.index_ == b.index_; }
  friend bool operator!=(MapDevice a, MapDevice b) { return a.index_ != b.index_; }
  // Accelerators by number, then the CPU, then the disk.
  friend bool operator<(MapDevice a, MapDevice b) { return a.order() < b.order(); }

 private:
  enum class Place { kDisk = -2, kCpu = -1 };
  explicit MapDevice(Place place) : index_(static_cast<int>(place)) {}
  long order() const { return index_ >= 0 ? index_ : (1L << 40) - index_; }

  int index_;
};

}  // namespace coupler
