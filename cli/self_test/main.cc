// coupler-self-test: what `coupler test` starts as the processes of the user's configuration. The
// main process prints a line a section and the verdict. Exit code: 0 where all is well, 1 where a
// section found something wrong; an Error that ends the job has its own.
#include <coupler/accelerator.h>
#include <coupler/objects.h>

#include <array>
#include <cstdio>

#include "section.h"

namespace coupler::self_test {
namespace {

constexpr std::array<Section, 8> kSections = {{
    {"initialization", initialization},
    {"process execution", process_execution},
    {"random numbers", random_numbers},
    {"collectives", collectives},
    {"split_between_processes", split_between_processes},
    {"trigger", trigger},
    {"data loaders", data_loaders},
    {"training", training},
}};

// Whether the section found nothing wrong on any rank.
bool passes(Accelerator& accelerator, const Section& section) {
  if (accelerator.is_main_process()) {
    std::printf("  %-24s", section.name);
    std::fflush(stdout);
  }
  Findings findings;
  section.run(accelerator, findings);
  const auto of_ranks = gather_object(accelerator, findings.texts());
  bool passed = true;
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    for (const std::string& text : of_ranks[rank]) {
      if (accelerator.is_main_process()) {
        std::printf("%s    rank %zu: %s\n", passed ? "FAILED\n" : "", rank, text.c_str());
      }
      passed = false;
    }
  }
  if (passed && accelerator.is_main_process()) std::puts("ok");
  return passed;
}

int run(Accelerator& accelerator) {
  const std::string job =
      std::to_string(accelerator.world()) + (accelerator.world() == 1 ? " process" : " processes") +
      " over " + accelerator.backend() + ", mixed precision " + accelerator.mixed_precision();
  const bool tells = accelerator.is_main_process();
  if (tells) std::printf("%s\n", job.c_str());
  int failed = 0;
  for (const Section& section : kSections) failed += passes(accelerator, section) ? 0 : 1;
  if (tells && failed == 0) std::puts("verdict: this configuration is ready to train");
  if (tells && failed > 0) {
    std::printf("verdict: NOT ready to train: %d of %zu sections failed\n", failed,
                kSections.size());
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace coupler::self_test

int main(int argc, char** argv) {
  coupler::Accelerator accelerator(argc, argv);
  return coupler::self_test::run(accelerator);
}
