// Greedy decoding by a LLaMA of 551 million random parameters in float32, whole in one process or
// its layers divided over the ranks of a job, one thread per process, driven by bench/run:
//   bench make_llama --folder FOLDER                                   writes the model
//   bench generate_over_ranks --checkpoint FOLDER --control SOCKET     plus configuration arguments
// Modes: generate, steps: the number of new tokens, whose answer in place of a loss is a checksum
// of them; and the MiB on this rank of weights, undivided (those vectors that it has whole), and
// loading (by which its anonymous memory grew at the peak while it made and loaded the model).
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <coupler/accelerator.h>
#include <coupler/empty_weights.h>
#include <coupler/error.h>
#include <coupler/language_model.h>
#include <coupler/text.h>
#include <torch/utils.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "control.h"
#include "extra_memory.h"
#include "llama_551m.h"
#include "program.h"

namespace coupler::bench::generate_over_ranks {
namespace {

constexpr double kMib = 1 << 20;

int make(int argc, char** argv) {
  const auto values = values_of(argc, argv, "--folder FOLDER");
  torch::manual_seed(0);
  const auto config = make_llama_551m(values[0]);
  save_pretrained(*make_language_model(config), config, values[0]);
  return 0;
}

// A model without values, so that no rank ever has all of it.
std::shared_ptr<LanguageModel> make_empty(const ModelConfig& config) {
  const EmptyWeights empty;
  return make_language_model(config);
}

double checksum(LanguageModel& model, int64_t tokens) {
  const auto given = coupler::generate(model, {{11, 70, 3301, 29, 17000, 5, 812, 9}},
                                       {.max_new_tokens = tokens, .end_tokens = {-1}});
  double sum = 0;
  for (const int64_t token : given[0].tokens) sum = sum / 2 + static_cast<double>(token);
  return sum;
}

}  // namespace

int program(int argc, char** argv) {
  Accelerator accelerator(argc, argv);
  const auto values = values_of(argc, argv, "--checkpoint FOLDER --control SOCKET");
  at::set_num_threads(1);
  ExtraMemory extra(/*anonymous=*/true);
  std::shared_ptr<LanguageModel> model = make_empty(ModelConfig::open(values[0]));
  std::map<std::string, int64_t> whole;
  int64_t parameters = 0;
  for (const auto& item : model->named_parameters())
    parameters += whole[item.key()] = item.value().numel();
  model->eval();
  for (const at::Tensor& parameter : model->parameters()) parameter.set_requires_grad(false);
  model = accelerator.prepare(model);
  accelerator.load_model(model, values[0], {.rename = checkpoint_names(*model)});

  std::map<std::string, double> mib{{"loading", extra.mib()}};
  for (const auto& item : model->named_parameters()) {
    const double size = static_cast<double>(item.value().nbytes()) / kMib;
    mib["weights"] += size;
    const bool undivided = item.value().dim() == 1 && item.value().numel() == whole[item.key()];
    if (undivided) mib["undivided"] += size;
  }
  double answer = 0;
  const at::NoGradGuard no_grad;
  Control control(values[1]);
  control.serve(accelerator.rank(), parameters,
                {.ready = [&] { accelerator.wait_for_everyone(); },
                 .train =
                     [&](const std::string& mode, int64_t steps) {
                       answer = mode == "generate" ? checksum(*model, steps) : mib.at(mode);
                     },
                 .loss = [&] { return answer; }});
  return 0;
}

const Registration kMake("make_llama", make);
const Registration kRegistration("generate_over_ranks", program);

}  // namespace coupler::bench::generate_over_ranks
