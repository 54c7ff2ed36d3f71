#include "base/resident.h"

#include <fstream>
#include <string>

namespace coupler {
namespace {

uint64_t read_status(const std::string& key) {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    uint64_t kibibytes = 0;
    if (word == key && status >> kibibytes) return kibibytes * 1024;
  }
  return 0;
}

}  // namespace

uint64_t resident_bytes() { return read_status("VmRSS:"); }
uint64_t most_resident_bytes() { return read_status("VmHWM:"); }

}  // namespace coupler
