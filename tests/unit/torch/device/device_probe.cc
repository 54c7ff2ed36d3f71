// Prints why this process has no CUDA device; nothing if it has one.
#include <cstdio>

#include "device/device.h"

int main() {
  std::puts(coupler::device::why_no_cuda().c_str());
  return 0;
}
