// Facts about this machine for `coupler env`, one line each, found without loading a library. A
// fact that cannot be found reads "unknown".
#pragma once

#include <string>

namespace coupler::cli {

std::string operating_system();  // "Debian GNU/Linux 12 (bookworm), Linux 6.1.0 x86_64, glibc 2.36"
std::string own_program();       // its path
std::string processor();         // "Intel(R) …, 16 cores, 8 usable"
std::string numa();              // "2 nodes: 0-15, 16-31"
std::string memory();            // "62.8 GiB, 40.1 GiB available"
std::string shared_memory();     // "64 MiB, 60 MiB free, /dev/shm"
std::string compiler();          // that built this program

}  // namespace coupler::cli
