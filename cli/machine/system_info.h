// Facts about this machine for `coupler env` and `coupler doctor`, found without loading a library
// or waking a device. A fact that cannot be found reads "unknown". Plain functions, callable from
// any thread, except mpi_info(), which may fork.
#pragma once

#include <string>
#include <vector>

namespace coupler::cli {

std::string operating_system();  // "Debian GNU/Linux 12 (bookworm), Linux 6.1.0 x86_64, glibc 2.36"
std::string processor();         // "Intel(R) …, 16 cores, 8 usable"
std::string numa();              // "2 nodes: 0-15, 16-31"
std::string memory();            // "62.8 GiB, 40.1 GiB available"
std::string shared_memory();     // "64 MiB, 60 MiB free, /dev/shm"
std::string compiler();          // that built this program

// NVIDIA GPUs and their driver, as the kernel shows them.
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

// The NVIDIA GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them, else by index.
// Empty if there is no driver.
std::vector<std::string> visible_gpus();

// The mpirun of this machine.
struct MpiInfo {
  std::string path;     // "": none in PATH
  std::string version;  // "mpirun (Open MPI) 4.1.4"; "": unknown
};

// The first of these programs in PATH. Its version is read from files if they have it, since
// starting mpirun takes longer than the rest of `coupler env`; otherwise from its --version.
MpiInfo mpi_info(const std::vector<std::string>& names);

// One line for users.
std::string describe(const MpiInfo& mpi);

// Whether an mpirun whose --version prints that is Open MPI's.
bool is_open_mpi(const std::string& version);

}  // namespace coupler::cli
