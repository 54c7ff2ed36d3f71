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
  return train_alone(*net, steps, [&](int step) { return loss_of_texts(net, joined_texts(step)); });
}
