// Greedy decoding by a LLaMA of 551 million random parameters with weights in float32, 8 and 4
// bits, in turns, driven by bench/run: bench quantized --control SOCKET. Modes: float32, int8 and
// int4; steps: the number of new tokens.
#include <ATen/Parallel.h>
#include <coupler/language_model.h>
#include <coupler/quantize.h>
#include <coupler/text.h>
#include <torch/utils.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "control.h"
#include "llama_551m.h"
#include "program.h"

namespace coupler::bench::quantized {
namespace {

struct Model {
  std::shared_ptr<coupler::LanguageModel> net;
  std::vector<coupler::DispatchedModel> quantized;  // empty, or the handle that keeps it quantized
};

Model make(const coupler::ModelConfig& config, int bits) {
  torch::manual_seed(0);
  Model model{coupler::make_language_model(config), {}};
  model.net->eval();
  if (bits == 0) return model;
  coupler::QuantizeOptions options;
  options.bits = bits;
  options.linear_classes = {"Head"};
  model.quantized.push_back(coupler::quantize(*model.net, options));
  return model;
}

}  // namespace

int program(int argc, char** argv) {
  const auto values = values_of(argc, argv, "--control SOCKET");
  at::set_num_threads(1);
  const auto config = make_llama_551m(values[0] + ".model");
  std::map<std::string, Model> models;
  for (const auto& [mode, bits] : {std::pair{"float32", 0}, {"int8", 8}, {"int4", 4}})
    models.emplace(mode, make(config, bits));
  int64_t parameters = 0;
  for (const at::Tensor& parameter : models.at("float32").net->parameters())
    parameters += parameter.numel();
  double answer = 0;
  coupler::bench::Control control(values[0]);
  control.serve(0, parameters,
                {.ready = [] {},
                 .train =
                     [&](const std::string& mode, int64_t steps) {
                       const auto given = coupler::generate(
                           *models.at(mode).net, {{11, 70, 3301, 29, 17000, 5, 812, 9}},
                           {.max_new_tokens = steps, .end_tokens = {-1}});
                       answer = static_cast<double>(given[0].tokens.back());
                     },
                 .loss = [&] { return answer; }});
  return 0;
}

const Registration kRegistration("quantized", program);

}  // namespace coupler::bench::quantized
