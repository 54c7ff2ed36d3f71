#include "pipeline/measure.h"

#include <ATen/core/grad_mode.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

namespace coupler {
namespace {

class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& module) : modules_(module.modules()) {
    for (const auto& part : modules_) training_.push_back(part->is_training());
    module.eval();
  }
  ~EvaluationMode() {  // parents come before their children
    for (size_t i = 0; i < modules_.size(); ++i) modules_[i]->train(training_[i]);
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  std::vector<bool> training_;
};

}  // namespace

std::vector<double> bytes_of_layers(const Chain& chain, const Model& model) {
  std::vector<double> result;
  for (const ChainLink& link : chain.links) {
    double bytes = 0;
    for (const size_t i : link.parameters) {
      bytes += static_cast<double>(model.parameters[i].tensor.nbytes());
    }
    result.push_back(bytes);
  }
  return result;
}

std::vector<double> seconds_of_layers(const Chain& chain, const Model& model,
                                      torch::nn::Module& module, const Values& example) {
  constexpr int kTurns = 4;  // the first of which warms up
  for (const ModelParameter& parameter : model.parameters) {
    if (!parameter.tensor.is_meta()) continue;
    throw Error(ErrorCode::kUsage,
                fmt::format("cannot time the layers on example_inputs: '{}' is not in memory",
                            parameter.name),
                {.subject = "example_inputs",
                 .hint = "omit it to cut by the parameters' bytes, or name split_points"});
  }
  const at::NoGradGuard no_grad;
  const EvaluationMode evaluation(module);
  std::vector<double> result;
  Values values = example;
  for (const ChainLink& link : chain.links) {
    Values next;
    double least = 0;
    for (int turn = 0; turn < kTurns; ++turn) {
      const auto begin = std::chrono::steady_clock::now();
      next = run_layer(link.layer, values);
      const double seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      if (turn == 1 || (turn > 1 && seconds < least)) least = seconds;
    }
    values = std::move(next);
    result.push_back(least);
  }
  return result;
}

}  // namespace coupler
