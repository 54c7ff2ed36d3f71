// coupler-self-test: the program that `coupler test` starts with the user's configuration. The main
// process prints a line per section and the verdict, or with --json one JSON object. Exit code: 0
// if all sections pass, 1 if one fails; an Error that ends the job has its own.
#include <coupler/accelerator.h>
#include <coupler/objects.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

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

using Json = nlohmann::ordered_json;

// The section's findings, by rank.
std::vector<std::vector<std::string>> findings_of(Accelerator& accelerator,
                                                  const Section& section) {
  Findings findings;
  section.run(accelerator, findings);
  return gather_object(accelerator, findings.texts());
}

bool has_none(const std::vector<std::vector<std::string>>& of_ranks) {
  return std::all_of(of_ranks.begin(), of_ranks.end(),
                     [](const auto& texts) { return texts.empty(); });
}

void print_findings(const std::vector<std::vector<std::string>>& of_ranks) {
  std::puts(has_none(of_ranks) ? "ok" : "FAILED");
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    for (const std::string& text : of_ranks[rank])
      std::printf("    rank %zu: %s\n", rank, text.c_str());
  }
}

Json section_json(const Section& section, const std::vector<std::vector<std::string>>& of_ranks) {
  Json findings = Json::array();
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    for (const std::string& text : of_ranks[rank])
      findings.push_back({{"rank", rank}, {"text", text}});
  }
  return {{"name", section.name}, {"passed", has_none(of_ranks)}, {"findings", findings}};
}

int run_as_text(Accelerator& accelerator) {
  const std::string job = std::to_string(accelerator.world_size()) +
                          (accelerator.world_size() == 1 ? " process" : " processes") + " over " +
                          accelerator.backend() + ", mixed precision " +
                          accelerator.mixed_precision();
  const bool tells = accelerator.is_main_process();
  if (tells) std::printf("%s\n", job.c_str());
  int failed = 0;
  for (const Section& section : kSections) {
    if (tells) {
      std::printf("  %-24s", section.name);
      std::fflush(stdout);
    }
    const auto of_ranks = findings_of(accelerator, section);
    if (tells) print_findings(of_ranks);
    failed += has_none(of_ranks) ? 0 : 1;
  }
  if (tells && failed == 0) std::puts("verdict: this configuration is ready to train");
  if (tells && failed > 0) {
    std::printf("verdict: NOT ready to train: %d of %zu sections failed\n", failed,
                kSections.size());
  }
  return failed == 0 ? 0 : 1;
}

int run_as_json(Accelerator& accelerator) {
  Json sections = Json::array();
  bool ready = true;
  for (const Section& section : kSections) {
    const auto of_ranks = findings_of(accelerator, section);
    sections.push_back(section_json(section, of_ranks));
    ready = ready && has_none(of_ranks);
  }
  const Json json = {{"ready", ready},
                     {"processes", accelerator.world_size()},
                     {"backend", accelerator.backend()},
                     {"mixed_precision", accelerator.mixed_precision()},
                     {"sections", sections}};
  if (accelerator.is_main_process())
    std::printf("%s\n", json.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
  return ready ? 0 : 1;
}

}  // namespace
}  // namespace coupler::self_test

int main(int argc, char** argv) {
  coupler::Accelerator accelerator(argc, argv);
  const bool as_json = argc > 1 && std::strcmp(argv[1], "--json") == 0;
  return as_json ? coupler::self_test::run_as_json(accelerator)
                 : coupler::self_test::run_as_text(accelerator);
}
