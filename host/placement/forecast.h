// What a run takes with each unit on a device: the model that coupler/device_map.h tells for
// predict_run. Pure functions, any thread; forecast() allocates nothing once its scratch has grown.
#pragma once

#include <coupler/device_map.h>

#include <cstdint>
#include <vector>

#include "placement/run_units.h"

namespace coupler {

// The numbers of a unit that a forecast needs.
struct ForecastUnit {
  uint64_t lives = 0, stays = 0, moves = 0;
  double reads = 0;   // bytes × uses
  double copies = 0;  // bytes × uses
};

struct RunProblem {
  std::vector<ForecastUnit> units;
  // Accelerators by number, then the CPU, then the disk; the last two are always there.
  std::vector<MapDevice> devices;
  std::vector<uint64_t> memory;
  std::vector<double> rate;  // of computing; 0 of the disk
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

// lies: the index of a device for each unit. details, if given, gets the times of each unit; paths
// are left empty.
Forecast forecast(const RunProblem& problem, const std::vector<size_t>& lies,
                  std::vector<PredictedRun::Unit>* details = nullptr);

}  // namespace coupler
