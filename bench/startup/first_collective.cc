// The shortest distributed program: joins the other ranks, sums a number over all ranks, and exits.
// --report FOLDER: each rank writes its peak memory (KiB) there. The counterpart is
// bench/python/first_collective.py.
#include <ATen/ops/ones.h>
#include <coupler/accelerator.h>
#include <coupler/error.h>

#include <fstream>
#include <string>

#include "program.h"

namespace coupler::bench::first_collective {
namespace {

// Of this program only: getrusage would include the launcher's memory before exec.
std::string peak_memory_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return line.substr(6);
  }
  return "0";
}

}  // namespace

int program(int argc, char** argv) {
  coupler::Accelerator accelerator(argc, argv);
  const auto sum = accelerator.reduce(at::ones({1})).item<double>();
  if (sum != accelerator.world_size()) {
    throw coupler::Error(coupler::ErrorCode::kInternal, "the sum over all ranks is wrong", {});
  }
  if (argc == 3 && std::string(argv[1]) == "--report") {
    std::ofstream(std::string(argv[2]) + "/" + std::to_string(accelerator.rank()))
        << peak_memory_kib() << '\n';
  }
  return 0;
}

const Registration kRegistration("first_collective", program);

}  // namespace coupler::bench::first_collective
