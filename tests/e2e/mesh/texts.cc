#include "texts.h"

using coupler::Accelerator;

Texts joined_texts(int step) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(200 + step));
  const auto draw = [&] {
    return torch::randint(0, kVocabulary, {kJoinedTexts, kTokens}, generator, torch::kLong);
  };
  const torch::Tensor ids = draw();
  return {ids, draw()};
}

Texts own_texts(Accelerator& accelerator, const Texts& joined, const char* group) {
  const coupler::Mesh& mesh = accelerator.mesh();
  const int64_t rows = kJoinedTexts / mesh.size(group), first = mesh.rank(group) * rows;
  return {joined.ids.narrow(0, first, rows).clone(), joined.targets.narrow(0, first, rows).clone()};
}

torch::Tensor loss_of_texts(DividedNet& net, const Texts& texts) {
  const torch::Tensor logits = net->forward(texts.ids), targets = texts.targets.flatten();
  return net->head == "vocab" ? coupler::parallel_cross_entropy(logits, targets)
                              : torch::cross_entropy_loss(logits, targets);
}

Expected train_on_texts_alone(int steps) {
  DividedNet net("");
  // Each parameter once: torch would update a tied one twice.
  torch::optim::AdamW optimizer(parameters_of(*net).values(), 1e-2);
  Expected expected;
  for (int step = 0; step < steps; ++step) {
    const torch::Tensor loss = loss_of_texts(net, joined_texts(step));
    optimizer.zero_grad();
    loss.backward();
    expected.losses.push_back(loss.item<double>());
    expected.norms.push_back(torch::nn::utils::clip_grad_norm_(parameters_of(*net).values(), 0.1));
    optimizer.step();
  }
  expected.weights = parameters_of(*net);
  return expected;
}

void shift(const torch::nn::Module& module, int by) {
  const torch::NoGradGuard no_grad;
  for (const auto& item : parameters_of(module)) item.value().add_(by);
}
