/* A double of NVIDIA's driver library, libcuda.so.1, for device_test: DRIVER_STATUS is what cuInit
 * returns, DRIVER_DEVICES how many devices there are, DRIVER_VERSION the CUDA version it supports
 * (13000). */
#include <stdlib.h>

static int number(const char* name, int otherwise) {
  const char* text = getenv(name);
  return text != NULL ? atoi(text) : otherwise;
}

int cuInit(unsigned flags);
int cuDeviceGetCount(int* count);
int cuDriverGetVersion(int* version);

int cuInit(unsigned flags) {
  (void)flags;
  return number("DRIVER_STATUS", 0);
}

int cuDeviceGetCount(int* count) {
  *count = number("DRIVER_DEVICES", 1);
  return 0;
}

int cuDriverGetVersion(int* version) {
  *version = number("DRIVER_VERSION", 13000);
  return 0;
}
