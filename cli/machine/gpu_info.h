// NVIDIA's GPUs and their driver, as the kernel shows them: nothing is loaded, no device is woken.
// Plain functions; no thread rule.
#pragma once

#include <string>
#include <vector>

namespace coupler::cli {

struct GpuInfo {
  std::string driver;             // "580.65.06"; "": no driver is loaded
  std::vector<std::string> gpus;  // names, as the driver knows them
  int cards = 0;                  // on the bus, driver or not
};
// root: "" but in tests; stands before /proc and /sys.
GpuInfo gpu_info(const std::string& root = "");

std::string describe_driver(const GpuInfo& gpu);
// "2 x NVIDIA H200", "none".
std::string describe_gpus(const GpuInfo& gpu);

}  // namespace coupler::cli
