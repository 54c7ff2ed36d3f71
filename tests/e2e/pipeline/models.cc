#include "models.h"

GPT make_gpt_model() {
  torch::manual_seed(3);
  GPT model(GPTOptions{.vocabulary = 17, .width = 16, .layers = 4, .heads = 2, .sequence = 6});
  model->to(torch::kDouble);
  return model;
}

torch::nn::Sequential make_batch_norm_model() {
  torch::manual_seed(4);
  torch::nn::Sequential model(torch::nn::Linear(5, 7), torch::nn::BatchNorm1d(7), torch::nn::Tanh(),
                              torch::nn::Linear(7, 6), torch::nn::BatchNorm1d(6),
                              torch::nn::Linear(6, 3));
  model->to(torch::kDouble);
  return model;
}

TiedImpl::TiedImpl(int64_t count) {
  embedding = register_module("embedding", torch::nn::Embedding(17, 8));
  register_module("blocks", blocks);
  for (int64_t i = 0; i < count; ++i) blocks->push_back(torch::nn::Linear(8, 8));
  norm = register_module("norm", torch::nn::Linear(8, 8));
}

torch::Tensor TiedImpl::forward(const torch::Tensor& tokens) {
  std::vector<torch::Tensor> values{tokens};
  for (const auto& layer : pipeline_layers()) {
    values =
        layer.one_tensor ? std::vector{layer.one_tensor(values[0])} : layer.all_tensors(values);
  }
  return values[0];
}

std::vector<coupler::PipelineLayer> TiedImpl::pipeline_layers() {
  using Values = std::vector<torch::Tensor>;
  std::vector<coupler::PipelineLayer> layers;
  layers.push_back({"embedding", {embedding.ptr()}, [this](const Values& values) {
                      return Values{embedding(values[0]), values[0]};
                    }});
  for (size_t i = 0; i < blocks->size(); ++i) {
    layers.push_back(
        {"blocks." + std::to_string(i), {blocks[i]}, [block = blocks[i]](const Values& values) {
           auto* const linear = block->as<torch::nn::Linear>();
           return Values{values[0] + torch::tanh(linear->forward(values[0])), values[1]};
         }});
  }
  layers.push_back({"norm", {norm.ptr(), embedding.ptr()}, [this](const Values& values) {
                      const auto kept = values[1].ne(0).unsqueeze(-1).to(torch::kDouble);
                      return Values{torch::linear(norm(values[0]) * kept, embedding->weight)};
                    }});
  return layers;
}

Tied make_tied_model(int64_t blocks) {
  torch::manual_seed(5);
  Tied model(blocks);
  model->to(torch::kDouble);
  return model;
}

TokenBatch token_batch(int step, int64_t rows) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(2000 + step));
  return {torch::randint(0, 17, {rows, 6}, generator, torch::kLong),
          torch::randint(0, 17, {rows, 6}, generator, torch::kLong)};
}

torch::Tensor token_loss(const torch::Tensor& logits, const torch::Tensor& targets) {
  return torch::cross_entropy_loss(logits.flatten(0, 1), targets.flatten());
}

std::vector<std::string> even_points(coupler::PipelineLayers& model, int stages) {
  const auto layers = model.pipeline_layers();
  std::vector<std::string> points;
  for (int stage = 1; stage < stages; ++stage) {
    points.push_back(
        layers[layers.size() * static_cast<size_t>(stage) / static_cast<size_t>(stages)].name);
  }
  return points;
}

std::vector<Check> all_checks() {
  std::vector<Check> all;
  for (const auto& part :
       {pipeline_parity_checks(), pipeline_saving_checks(), pipeline_misuse_checks()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}
