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

#include <coupler/device_rates.h>
#include <coupler/max_memory.h>

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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
    std::string path;    // of its module
    uint64_t bytes = 0;  // of its weights
    MapDevice lies;      // where its weights are stored
    MapDevice runs;      // where it computes
    double begins = 0;   // seconds from the start of the pass
    double ends = 0;     // seconds from the start of the pass
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
