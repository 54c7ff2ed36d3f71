// Facts about this machine for `coupler env`, each as one line of text. Nothing is loaded to find
// them out; what cannot be found says so.
#pragma once

#include <string>

namespace coupler::cli {

std::string operating_system();  // "Debian GNU/Linux 12 (bookworm), Linux 6.1.0 x86_64, glibc 2.36"
std::string processor();         // "Intel(R) …, 16 cores, 8 usable"
std::string memory();            // "62.8 GiB, 40.1 GiB available"
std::string compiler();          // that built this program
std::string open_mpi();          // first line of mpirun --version, and where it is
std::string gpu_driver();        // NVIDIA's kernel module
std::string libtorch();          // version and folder, from its files alone

}  // namespace coupler::cli
