// Device maps: which device each part of a model lives on, for models that are larger than one
// accelerator or than the memory of the machine.
//
//   coupler::DeviceMapOptions options;
//   options.max_memory = {{0, "20GiB"}, {1, "20GiB"}, {"cpu", "100GiB"}};
//   options.no_split_module_classes = {"GPTJBlock"};
//   coupler::DeviceMap map = coupler::infer_auto_device_map(*model, options);
//   std::cout << coupler::to_table(*model, map, options);
//
// Only names and sizes are looked at, so the model may be on the meta device (EmptyWeights).
//
// Everything here is plain values and pure functions: any thread, no state. What takes a module
// reads it and must not run beside something that registers modules or tensors in it. Errors are
// coupler::Error(kInvalidArgument) unless said otherwise; sizes are in bytes, rates in bytes per
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

// Paths of modules or tensors, as named_modules and named_parameters give them, each with a device.
// A path speaks for all below it that no longer path speaks for; "" is the whole model. Keeps the
// order in which paths were set.
class DeviceMap {
 public:
  // A dotted path of a module or parameter, and where it is; "" is the whole model.
  using Entry = std::pair<std::string, MapDevice>;

  DeviceMap() = default;
  // {{"transformer.wte", 0}, {"transformer.h", "cpu"}, {"lm_head", 1}}. A path given twice is an
  // error.
  DeviceMap(std::initializer_list<Entry> entries);

  // Replaces the device of a path, or appends it.
  void set(const std::string& path, MapDevice device);
  const std::vector<Entry>& entries() const { return entries_; }

  // Of a module or tensor: its own entry's, or that of the nearest one above it.
  std::optional<MapDevice> device_of(std::string_view path) const;

  // {"transformer.wte": 0, "lm_head": "cpu"}, one entry a line, as Python's json writes
  // Accelerate's.
  std::string to_json() const;
  // Throws Error naming the key: not an object, a path twice, what is no device.
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
  // Empty: what is free now on the accelerators LibTorch sees and in the machine's memory. With
  // one accelerator 9/10 of that unless the mode is "sequential".
  MaxMemory max_memory;

  // Classes whose modules stay whole on one device, such as blocks with a residual connection.
  // With the namespace or without, with LibTorch's suffix Impl or without: "GPTJBlock".
  std::vector<std::string> no_split_module_classes;

  // What the weights will be converted to when they are loaded: "float16". Empty: they stay.
  // Integers and bools stay, and so does what is smaller already.
  std::string dtype;
  // The same for single tensors, by name; goes before dtype and holds for any type.
  std::map<std::string, std::string> special_dtypes;

  // Whether buffers of modules on "cpu" and "disk" lie there, too, or where the module runs.
  bool offload_buffers = false;
  // Entries that are all of a module's and on one device become one entry for the module.
  bool clean_result = true;
  // Where the next module does not fit on an empty device: look for any that does. Else that
  // device stays empty. Not used by "optimal".
  bool fallback_allocation = false;

  // "sequential"      fills one device after the other, in the order of registration, as
  //                   Accelerate's infer_auto_device_map does: the same map.
  // "auto", "balanced", "balanced_low_0"
  //                   the same with the memory that get_balanced_memory gives.
  // "optimal"         the least predicted time, see predict_run; never slower than "sequential".
  std::string mode = "sequential";

  // The rest is for "optimal" and predict_run only.
  DeviceRates rates;
  // How often a run uses modules, by path, where it is not once: {{"shared_block", 12}}. Holds for
  // all below that no longer path speaks for. Above 0.
  std::map<std::string, double> uses;
};

// A map with which every parameter and buffer has a device and tied parameters are on one. In the
// compatible modes it is Accelerate 1.15's, except where that is no valid map or none at all:
// buffers of modules that were split have entries of their own, tied parameters stay together, and
// where Accelerate ends with an exception of its own code there is a map.
//
// Throws Error naming module and size where no device but the disk could hold the largest layer;
// for an unknown mode, class of device, dtype or path.
DeviceMap infer_auto_device_map(const torch::nn::Module& model,
                                const DeviceMapOptions& options = {});

// The memory with which "balanced" fills all accelerators alike; low_zero leaves as little as
// possible on the first one. Accelerate's rule.
MaxMemory get_balanced_memory(const torch::nn::Module& model, const DeviceMapOptions& options,
                              bool low_zero = false);

// Throws Error where the map names what the model has not, leaves a parameter or buffer out, or
// puts tied parameters on different devices; it names them.
void check_device_map(const torch::nn::Module& model, const DeviceMap& map);

// What a run with a map is predicted to take. The model, for "optimal" just as for this function:
//
// A *unit* is a module of a no-split class, a module without children, or the tensors that a module
// with children has itself. Units run one after the other, in the order of registration, each as
// often as `uses` says.
// - A unit on an accelerator runs there. One on "cpu" or "disk" runs on the *main device*, the
//   lowest accelerator of the map, where it has room beside what lives there; else on the CPU. The
//   tensors of a no-split module that the map puts on different devices run each as a unit.
// - Running takes bytes × uses / the device's rate: weights are read once a use.
// - What runs elsewhere than it lies is copied there for each use: from the CPU at
//   cpu_to_accelerator, from the disk at disk_to_cpu first. One copy goes at a time, while other
//   units run: the next one's begins once the one before last has run and left its room, or, where
//   there is no room for two, once the last one has.
// - Each change of the running device costs hop_seconds for the activations.
// Buffers of such units stay on the main device unless offload_buffers; they count there and where
// the unit lies.
struct PredictedRun {
  // When and where one unit runs.
  struct Unit {
    std::string path;    // of its module
    uint64_t bytes = 0;  // of its weights
    MapDevice lies;      // where its weights are
    MapDevice runs;      // where it computes
    double begins = 0;   // seconds from the begin of the pass
    double ends = 0;     // likewise
  };
  double seconds = 0;          // of one pass
  double compute_seconds = 0;  // running
  double waiting_seconds = 0;  // for copies
  bool fits = true;            // no device holds more than max_memory
  std::vector<Unit> units;     // in the order of running
};
// Throws Error as check_device_map does. A pure function.
PredictedRun predict_run(const torch::nn::Module& model, const DeviceMap& map,
                         const DeviceMapOptions& options);

// The map as a table of paths, devices and sizes, and below it a bar for each device: how full it
// is of options.max_memory. Ends with a newline.
std::string to_table(const torch::nn::Module& model, const DeviceMap& map,
                     const DeviceMapOptions& options = {});

// For holders: infer_auto_device_map(model, options).
template <class Holder>
auto infer_auto_device_map(const Holder& model, const DeviceMapOptions& options = {})
    -> decltype(infer_auto_device_map(*model, options)) {
  return infer_auto_device_map(*model, options);
}

}  // namespace coupler
