// NVIDIA GPUs and their driver as the kernel shows them, without loading a library or waking a
// device. Plain functions, callable from any thread.
#pragma once

#include <string>
#include <vector>

namespace coupler::cli {

struct GpuInfo {
  std::string driver;             // "580.65.06"; "": not loaded
  std::vector<std::string> gpus;  // names, as the driver knows them
  int cards = 0;                  // on the bus, driver or not
};
// root: the prefix of /proc and /sys, "" except in tests.
GpuInfo gpu_info(const std::string& root = "");

std::string describe_driver(const GpuInfo& gpu);
// "2 x NVIDIA H200", "none".
std::string describe_gpus(const GpuInfo& gpu);

}  // namespace coupler::cli
