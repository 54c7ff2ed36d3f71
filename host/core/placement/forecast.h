// Predicts the time of a run with each unit on a given device, by the model that
// coupler/device_map.h describes for predict_run. Pure functions, any thread; forecast() allocates
// only if there are many devices.
#pragma once

#include <coupler/device_map.h>

#include <cstdint>
#include <vector>

#include "placement/run_units.h"

namespace coupler {

// What a forecast needs to know about a unit; all but reads and copies in bytes.
struct ForecastUnit {
  uint64_t lives = 0, stays = 0, moves = 0;
  double reads = 0;   // bytes × uses
  double copies = 0;  // bytes × uses
};

struct RunProblem {
  std::vector<ForecastUnit> units;
  // Accelerators by number, then the CPU, then the disk; the last two always exist.
  std::vector<MapDevice> devices;
  std::vector<uint64_t> memory;
  std::vector<double> rate;  // of computing; 0 for the disk
  double cpu_to_accelerator = 0, disk_to_cpu = 0, hop = 0;

  size_t cpu() const { return devices.size() - 2; }
  size_t disk() const { return devices.size() - 1; }
};

struct Forecast {
  double seconds = 0, compute = 0, waiting = 0;
  bool fits = true;
};

// Throws Error(kInvalidArgument) for a rate that is not above 0.
RunProblem run_problem(const std::vector<RunUnit>& units, const DeviceMapOptions& options);

// lies: the device index of each unit. details, if given, receives the times of each unit; its
// paths are left empty.
Forecast forecast(const RunProblem& problem, const std::vector<size_t>& lies,
                  std::vector<PredictedRun::Unit>* details = nullptr);

}  // namespace coupler
