// Greedy decoding by a language model of 135 million parameters, with weights in memory and on
// disk, in turns with transformers, driven by bench/run: bench generate --checkpoint FOLDER
// --control SOCKET. Modes: memory and disk; steps: the number of new tokens. The answer in place of
// a loss is a checksum of the new tokens.
#include <ATen/Parallel.h>
#include <coupler/text.h>

#include <map>
#include <string>
#include <vector>

#include "control.h"
#include "program.h"

namespace coupler::bench::generate {
int program(int argc, char** argv) {
  const auto values = values_of(argc, argv, "--checkpoint FOLDER --control SOCKET");
  at::set_num_threads(1);
  std::map<std::string, coupler::TextGeneration> generators;
  for (const auto& [mode, place] : {std::pair{"memory", "cpu"}, std::pair{"disk", "disk"}}) {
    generators.emplace(mode, coupler::pipeline("text-generation", values[0],
                                               {.device_map = coupler::DeviceMap{{"", place}}}));
  }
  int64_t parameters = 0;
  for (const at::Tensor& parameter : generators.at("memory").model().parameters())
    parameters += parameter.numel();
  const std::vector<int64_t> prompt{11, 70, 3301, 29, 17000, 5, 812, 9};
  double answer = 0;
  coupler::bench::Control control(values[1]);
  control.serve(0, parameters,
                {.ready = [] {},
                 .train =
                     [&](const std::string& mode, int64_t steps) {
                       const auto given = generators.at(mode).continue_tokens(
                           {prompt}, {.max_new_tokens = steps, .end_tokens = {-1}});
                       answer = 0;
                       for (const int64_t token : given[0].tokens)
                         answer = answer / 2 + static_cast<double>(token);
                     },
                 .loss = [&] { return answer; }});
  return 0;
}

const Registration kRegistration("generate", program);

}  // namespace coupler::bench::generate
