// The losses of 20 steps in fp32 are those of one process, whatever the mesh: one model for all of
// them, as a chain of layers for pipelines, with a plan for tensor groups, and with experts if the
// mesh divides some.
#include <coupler/coupler.h>

#include <cmath>
#include <optional>

#include "mesh_checks.h"
#include "texts.h"

using coupler::Accelerator;

namespace {

constexpr int kLossSteps = 20;
constexpr double kLossTolerance = 1e-5;
constexpr double kLearningRate = 1e-3;

struct LossNetImpl : torch::nn::Module, coupler::TensorParallelLayers, coupler::PipelineLayers {
  // whole: used without Coupler, although the process has a tensor group.
  LossNetImpl(bool whole, bool with_experts) {
    torch::manual_seed(13);
    tokens = register_module("tokens", torch::nn::Embedding(kVocabulary, kWidth));
    places = register_module("places", torch::nn::Embedding(kTokens, kWidth));
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (int i = 0; i < 2; ++i) blocks->push_back(DividedBlock(whole));
    if (with_experts) {
      experts =
          register_module("experts", coupler::MixtureOfExperts(coupler::MixtureOfExpertsOptions{
                                         .features = kWidth, .inner = 2 * kWidth, .experts = 4}));
    }
    out = register_module("out", TiedHead(tokens->weight));
  }
  coupler::TensorPlan tensor_plan(int) const override {
    return {{"tokens", "vocab"},
            {"places", "sequence"},
            {"blocks.*.norm", "sequence"},
            {"blocks.*.q", "colwise", kWidth / kHeads},
            {"blocks.*.k", "colwise", kWidth / kHeads},
            {"blocks.*.v", "colwise", kWidth / kHeads},
            {"blocks.*.o", "rowwise"},
            {"blocks.*.head_norm", "sum_gradients"},
            {"blocks.*.up", "colwise"},
            {"blocks.*.down", "rowwise"},
            {"out", "colwise_gather"}};
  }
  // Without the experts, which pipelines do not divide.
  std::vector<coupler::PipelineLayer> pipeline_layers() override {
    std::vector<coupler::PipelineLayer> layers;
    layers.push_back({"tokens", {tokens.ptr(), places.ptr()}, [this](const torch::Tensor& ids) {
                        return embed(ids);
                      }});
    for (const auto& block : *blocks) {
      layers.push_back(
          {"blocks." + std::to_string(layers.size() - 1), {block}, [block](const torch::Tensor& x) {
             return block->as<DividedBlock>()->forward(x);
           }});
    }
    layers.push_back(
        {"out", {out.ptr()}, [this](const torch::Tensor& x) { return out->forward(x); }});
    return layers;
  }
  torch::Tensor embed(const torch::Tensor& ids) {
    return tokens->forward(ids) + places->forward(coupler::context_positions(ids.size(1)));
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    torch::Tensor x = embed(ids);
    for (const auto& block : *blocks) x = block->as<DividedBlock>()->forward(x);
    if (!experts.is_empty()) x = x + experts->forward(x);
    return out->forward(x);
  }
  torch::nn::Embedding tokens{nullptr}, places{nullptr};
  torch::nn::ModuleList blocks{nullptr};
  coupler::MixtureOfExperts experts{nullptr};
  TiedHead out{nullptr};
};
TORCH_MODULE(LossNet);

torch::Tensor loss_of_logits(const torch::Tensor& logits, const torch::Tensor& targets) {
  return torch::cross_entropy_loss(logits.flatten(0, 1), targets.flatten());
}

void losses_of_20_steps(Accelerator& accelerator) {
  const bool divides_experts = accelerator.mesh().size("expert") > 1;
  LossNet alone(/*whole=*/true, divides_experts), model(/*whole=*/false, divides_experts);
  const Expected expected = train_alone(
      *alone, kLossSteps,
      [&](int step) {
        const Texts texts = joined_texts(step);
        return loss_of_logits(alone->forward(texts.ids), texts.targets);
      },
      1, kLearningRate);
  torch::optim::AdamW optimizer(model->parameters(), kLearningRate);
  std::optional<coupler::PipelineParallel> stages;
  if (accelerator.mesh().size("pipeline") > 1)
    stages.emplace(coupler::prepare_pipeline(accelerator, model, {.micro_batches = 2}));
  LossNet net = stages ? model : accelerator.prepare(model);
  auto opt = accelerator.prepare(optimizer);
  for (int step = 0; step < kLossSteps; ++step) {
    const Texts texts = own_texts(accelerator, joined_texts(step), kSamples);
    double own = 0;
    {
      const auto scope = accelerator.context_parallel({{texts.ids, 1}, {texts.targets, 1}});
      if (stages) {
        own = stages->train_step(texts.ids, texts.targets, loss_of_logits);
      } else {
        const torch::Tensor loss = loss_of_logits(net->forward(texts.ids), texts.targets);
        accelerator.backward(loss);
        own = loss.item<double>();
      }
    }
    const double loss = mean_over_replicas(accelerator, own),
                 wanted = expected.losses[static_cast<size_t>(step)];
    EXPECT(std::abs(loss - wanted) <= kLossTolerance,
           "the loss of step " + std::to_string(step) + " is " + std::to_string(loss) +
               ", off by " + std::to_string(1e6 * std::abs(loss - wanted)) + "e-6");
    accelerator.clip_grad_norm(net, 0.1);
    opt.step();
    opt.zero_grad();
  }
}

}  // namespace

std::vector<Check> mesh_loss_checks() {
  return {{"losses_of_20_steps", losses_of_20_steps, /*alone=*/true}};
}
