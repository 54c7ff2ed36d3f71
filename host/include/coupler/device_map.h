// Device maps: the device on which each part of a model is placed, for models larger than one
// accelerator or than the machine's memory.
//
//   coupler::DeviceMapOptions options;
//   options.max_memory = {{0, "20GiB"}, {1, "20GiB"}, {"cpu", "100GiB"}};
//   options.no_split_module_classes = {"GPTJBlock"};
//   coupler::DeviceMap map = coupler::infer_auto_device_map(*model, options);
//   std::cout << coupler::to_table(*model, map, options);
//
// Only names and sizes are used, so the model may be on the meta device (EmptyWeights).
//
// Everything here is plain values and pure functions: any thread, no state. Functions that take a
// module read it and must not run while modules or tensors are being registered in it. Errors are
// coupler::Error(kInvalidArgument) unless stated otherwise; sizes are in bytes, rates in bytes per
// second, times in seconds.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace coupler {

// MapDevice: a place for a part of a model: an accelerator by number, host memory, or disk. A
// value; any thread.
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

// MaxMemory: how much of a model each device may hold. A value; any thread.
//
//   coupler::MaxMemory memory = {{0, "10GiB"}, {1, "10GB"}, {"cpu", "30GiB"}};
//
// A device that is not named gets nothing, except the disk, which holds the remainder without a
// limit, whether named or not.
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

// How fast devices compute and copy, in bytes per second, for the mode "optimal" and predict_run.
struct DeviceRates {
  // Compute rate of a device, in bytes of weights used per second. With few tokens at a time, that
  // is its memory bandwidth.
  double accelerator_compute = 1e12;
  double cpu_compute = 2e10;
  // Compute rates of individual accelerators that differ, by number.
  std::map<int, double> accelerators;

  // Copy rates, in bytes per second.
  double cpu_to_accelerator = 1.2e10;
  double disk_to_cpu = 1e9;
  // Time to pass activations from one device to another once, in seconds.
  double hop_seconds = 5e-5;

  // The compute rate of an accelerator by number.
  double compute_of(int accelerator) const {
    const auto found = accelerators.find(accelerator);
    return found == accelerators.end() ? accelerator_compute : found->second;
  }
};

// Returns the defaults with the rates that can be measured on this machine without an accelerator,
// in a fifth of a second: the memory bandwidth of all cores (cpu_compute), the rate of memory
// copies as an upper bound for cpu_to_accelerator, and the rate of reading a file in `folder`
// bypassing the page cache (disk_to_cpu; through the cache if the file system cannot bypass it).
// Writes and removes a file of up to 32 MiB; throws Error(kIo) naming the folder if that fails.
DeviceRates measure_rates(const std::string& folder = ".");

}  // namespace coupler

namespace torch::nn {
class Module;
}

namespace coupler {

// Maps paths of modules or tensors, as returned by named_modules and named_parameters, to devices.
// A path applies to everything below it unless a longer path applies; "" is the whole model. Keeps
// the order in which paths were set.
class DeviceMap {
 public:
  // A dotted path of a module or parameter, and its device; "" is the whole model.
  using Entry = std::pair<std::string, MapDevice>;

  DeviceMap() = default;
  // {{"transformer.wte", 0}, {"transformer.h", "cpu"}, {"lm_head", 1}}. A path given twice is an
  // error.
  DeviceMap(std::initializer_list<Entry> entries);

  // Replaces the device of a path, or appends it.
  void set(const std::string& path, MapDevice device);
  const std::vector<Entry>& entries() const { return entries_; }

  // The device of a module or tensor: that of its own entry, or of its nearest ancestor's.
  std::optional<MapDevice> device_of(std::string_view path) const;

  // {"transformer.wte": 0, "lm_head": "cpu"}, one entry per line, as Python's json module writes
  // Accelerate's maps.
  std::string to_json() const;
  // Throws Error naming the key if the text is not an object, repeats a path, or has an invalid
  // device.
  static DeviceMap from_json(std::string_view text);

  friend bool operator==(const DeviceMap& a, const DeviceMap& b) {
    return a.entries_ == b.entries_;
  }
  friend bool operator!=(const DeviceMap& a, const DeviceMap& b) { return !(a == b); }

 private:
  std::vector<Entry> entries_;
  std::map<std::string, size_t, std::less<>> index_;
};

// For infer_auto_device_map, predict_run and to_table.
struct DeviceMapOptions {
  // Empty: the memory that is free now on the accelerators LibTorch sees and in the machine. With
  // one accelerator, 9/10 of that unless the mode is "sequential".
  MaxMemory max_memory;

  // Classes whose modules are never split over devices, such as blocks with a residual connection.
  // With or without the namespace, with or without LibTorch's suffix Impl: "GPTJBlock".
  std::vector<std::string> no_split_module_classes;

  // The dtype to which weights will be converted on load, such as "float16". Empty: unchanged.
  // Integers, bools and weights of a smaller dtype are not converted.
  std::string dtype;
  // The same for single tensors, by name; takes precedence over dtype and applies to any dtype.
  std::map<std::string, std::string> special_dtypes;

  // Whether buffers of modules on "cpu" and "disk" are stored there, too, or where the module runs.
  bool offload_buffers = false;
  // Merges entries that cover all of a module and share a device into one entry for the module.
  bool clean_result = true;
  // If the next module does not fit on an empty device, look for any module that does; otherwise
  // that device stays empty. Not used by "optimal".
  bool fallback_allocation = false;

  // "sequential"      fills one device after the other in order of registration; gives the same map
  //                   as Accelerate's infer_auto_device_map.
  // "auto", "balanced", "balanced_low_0"
  //                   the same with the memory limits of get_balanced_memory.
  // "optimal"         minimizes the predicted time (predict_run); never slower than "sequential".
  std::string mode = "sequential";

  // The rest is for "optimal" and predict_run only.
  DeviceRates rates;
  // How often a run uses modules, by path, if not once: {{"shared_block", 12}}. Applies to
  // everything below unless a longer path applies. Must be above 0.
  std::map<std::string, double> uses;
};

// Returns a map that gives every parameter and buffer a device and puts tied parameters on one
// device. In the compatible modes it equals Accelerate 1.15's, except when that is invalid or
// missing: buffers of split modules get entries of their own, tied parameters stay together, and
// there is a map when Accelerate fails with an internal exception.
//
// Throws Error naming module and size if no device except the disk could hold the largest layer,
// and for an unknown mode, class of device, dtype or path.
DeviceMap infer_auto_device_map(const torch::nn::Module& model,
                                const DeviceMapOptions& options = {});

// The memory limits with which "balanced" fills all accelerators evenly; low_zero puts as little as
// possible on the first one. Same rule as Accelerate's.
MaxMemory get_balanced_memory(const torch::nn::Module& model, const DeviceMapOptions& options,
                              bool low_zero = false);

// Throws Error naming the entries or tensors if the map names something the model does not have,
// omits a parameter or buffer, or puts tied parameters on different devices.
void check_device_map(const torch::nn::Module& model, const DeviceMap& map);

// The predicted time of a run with a map. "optimal" and predict_run use the same cost model:
//
// A *unit* is a module of a no-split class, a module without children, or the tensors that a module
// with children owns directly. Units run sequentially in order of registration, each as often as
// `uses` says.
// - A unit on an accelerator runs there. One on "cpu" or "disk" runs on the *main device*, the
//   lowest accelerator of the map, if it fits next to the units placed there, or else on the CPU.
//   If the map splits the tensors of a no-split module over devices, each runs as its own unit.
// - Running takes bytes × uses / the device's rate: weights are read once per use.
// - A unit that runs on another device than it is stored on is copied there for each use: from the
//   CPU at cpu_to_accelerator, from disk at disk_to_cpu first. One copy runs at a time, overlapping
//   with computation: the next copy starts once the unit before last has run and freed its room,
//   or, if there is no room for two, once the last unit has.
// - Each change of the running device costs hop_seconds for the activations.
// Buffers of such units stay on the main device unless offload_buffers; they count both there and
// where the unit is stored.
struct PredictedRun {
  // When and where one unit runs.
  struct Unit {
    std::string path;     // of its module
    uint64_t bytes = 0;   // of its weights
    MapDevice stored_on;  // where its weights are stored
    MapDevice runs_on;    // where it computes
    double begins = 0;    // seconds from the start of the pass
    double ends = 0;      // seconds from the start of the pass
  };
  double seconds = 0;          // of one pass
  double compute_seconds = 0;  // spent computing
  double waiting_seconds = 0;  // spent waiting for copies
  bool fits = true;            // whether no device exceeds max_memory
  std::vector<Unit> units;     // in execution order
};
// Predicts a run with a map. Throws Error as check_device_map does. A pure function.
PredictedRun predict_run(const torch::nn::Module& model, const DeviceMap& map,
                         const DeviceMapOptions& options);

// Formats the map as a table of paths, devices and sizes, followed by a bar for each device that
// shows how much of options.max_memory is used. Ends with a newline.
std::string to_table(const torch::nn::Module& model, const DeviceMap& map,
                     const DeviceMapOptions& options = {});

// For holders: infer_auto_device_map(model, options).
template <class Holder>
auto infer_auto_device_map(const Holder& model, const DeviceMapOptions& options = {})
    -> decltype(infer_auto_device_map(*model, options)) {
  return infer_auto_device_map(*model, options);
}

}  // namespace coupler
