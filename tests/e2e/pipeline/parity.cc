// A pipeline computes what the unsplit model does: outputs, losses, gradients, and the weights
// after training. If micro-batches are added in the same order, the numbers are bitwise equal.
#include <coupler/coupler.h>
#include <coupler/objects.h>

#include "models.h"

using coupler::Accelerator;
using coupler::prepare_pipeline;

namespace {

std::string place(const std::string& what, int step) {
  return what + " in step " + std::to_string(step);
}

bool close(const torch::Tensor& a, const torch::Tensor& b) {
  return torch::allclose(a, b, /*rtol=*/1e-9, /*atol=*/1e-12);
}

void inference(Accelerator& accelerator) {
  GPT model = make_gpt_model(), unsplit = make_gpt_model();
  model->eval();
  auto pipeline = prepare_pipeline(accelerator, model, {.micro_batches = 3});
  EXPECT(pipeline.stages() == accelerator.world_size(), "not every process is a stage");
  for (const int64_t rows : {6, 7, 3}) {  // also sizes that do not divide evenly
    const auto tokens = token_batch(0, rows).tokens;
    const auto output = pipeline.forward(pipeline.is_first() ? tokens : torch::Tensor());
    EXPECT(output.defined() == pipeline.is_last(), "the output is not on the last process only");
    if (!output.defined()) continue;
    const torch::NoGradGuard no_grad;
    std::vector<torch::Tensor> parts;
    for (const auto& part : tokens.tensor_split(3)) parts.push_back(unsplit->forward(part));
    EXPECT(torch::equal(output, torch::cat(parts)),
           "micro-batches differ from the unsplit model's");
    EXPECT(close(output, unsplit->forward(tokens)), "the output differs from the unsplit model's");
  }
}

void gathered_output(Accelerator& accelerator) {
  GPT model = make_gpt_model(), unsplit = make_gpt_model();
  auto pipeline = prepare_pipeline(accelerator, model, {.gather_output = true});
  const auto tokens = token_batch(1, 8).tokens;
  const auto output = pipeline.forward(tokens);
  EXPECT(close(output, unsplit->forward(tokens)), "the output differs from the unsplit model's");
  EXPECT(!output.requires_grad(), "inference recorded a graph");
}

void only_own_layers_have_memory(Accelerator& accelerator) {
  GPT model = make_gpt_model();
  auto pipeline = prepare_pipeline(accelerator, model);
  size_t own = 0;
  for (const auto& parameter : model->parameters()) own += parameter.is_meta() ? 0 : 1;
  EXPECT(own > 0, "a stage has no parameters");
  EXPECT(accelerator.world_size() == 1 || own < model->parameters().size(),
         "a stage keeps parameters of other stages");
  const auto all = coupler::gather_object(accelerator, own);
  size_t sum = 0;
  for (const size_t one : all) sum += one;
  EXPECT(sum == model->parameters().size(), "not every parameter is kept exactly once");
}

// Three steps; the second has a number of rows that does not divide evenly.
template <class Model, class Train>
void compare_training(Accelerator& accelerator, Model model, Model unsplit,
                      coupler::PipelineParallel& pipeline, int64_t micro_batches, bool bitwise,
                      const Train& batch_of, const coupler::PipelineParallel::Loss& loss) {
  torch::optim::AdamW optimizer(model->parameters(), 1e-2);
  auto opt = accelerator.prepare(optimizer);
  torch::optim::AdamW plain(unsplit->parameters(), 1e-2);
  for (int step = 0; step < 3; ++step) {
    const auto [input, target] = batch_of(step, step == 1 ? 11 : 12);
    const double got = pipeline.train_step(pipeline.is_first() ? input : torch::Tensor(),
                                           pipeline.is_last() ? target : torch::Tensor(), loss);
    const double right = train_unsplit(unsplit, input, target, micro_batches, loss);
    EXPECT(std::abs(got - right) < 1e-9, place("the losses differ", step));
    const auto mine = model->named_parameters(), theirs = unsplit->named_parameters();
    for (const auto& item : mine) {
      if (item.value().is_meta()) continue;  // it belongs to another process
      const auto& gradient = item.value().grad();
      const auto& expected = theirs[item.key()].grad();
      EXPECT(gradient.defined() == expected.defined(), place(item.key() + ": no gradient", step));
      if (!gradient.defined()) continue;
      EXPECT(close(gradient, expected), place(item.key() + ": the gradients differ", step));
      // In later steps the two optimizers have rounded differently.
      EXPECT(!bitwise || step > 0 || torch::equal(gradient, expected),
             place(item.key() + ": the gradients' bits differ", step));
    }
    const double norm = accelerator.clip_grad_norm(model, 0.1);
    const double plain_norm = torch::nn::utils::clip_grad_norm_(unsplit->parameters(), 0.1);
    EXPECT(std::abs(norm - plain_norm) < 1e-9, place("the norms differ", step));
    opt.step();
    opt.zero_grad();
    plain.step();
    plain.zero_grad();
  }
  const auto theirs = unsplit->named_parameters();
  accelerator.for_each_tensor(model, [&](const std::string& name, const torch::Tensor& value) {
    if (const auto* expected = theirs.find(name)) {
      EXPECT(close(value, *expected), name + " differs after training");
    }
  });
}

void training(Accelerator& accelerator) {
  for (const int64_t micro_batches : {1, 4, 11}) {  // also fewer than stages
    GPT model = make_gpt_model(), unsplit = make_gpt_model();
    auto pipeline = prepare_pipeline(accelerator, model, {.micro_batches = micro_batches});
    compare_training(accelerator, model, unsplit, pipeline, micro_batches, /*bitwise=*/true,
                     token_batch, token_loss);
  }
}

void training_from_named_points(Accelerator& accelerator) {
  GPT model = make_gpt_model(), unsplit = make_gpt_model();
  const auto points = even_points(*model, accelerator.world_size());
  auto pipeline =
      prepare_pipeline(accelerator, model, {.split_points = points, .micro_batches = 4});
  EXPECT(pipeline.split_points() == points, "the parts begin at other layers");
  compare_training(accelerator, model, unsplit, pipeline, 4, /*bitwise=*/true, token_batch,
                   token_loss);
}

// The embedding's weight is on the first and the last stage; two tensors pass between stages.
void tied_weights(Accelerator& accelerator) {
  Tied model = make_tied_model(), unsplit = make_tied_model();
  auto pipeline = prepare_pipeline(
      accelerator, model,
      {.split_points = even_points(*model, accelerator.world_size()), .micro_batches = 3});
  compare_training(accelerator, model, unsplit, pipeline, 3, /*bitwise=*/false, token_batch,
                   token_loss);
  const auto whole =
      accelerator.broadcast(accelerator.rank() == 0 ? model->embedding->weight.detach()
                                                    : torch::zeros({17, 8}, torch::kDouble));
  if (pipeline.is_last()) {
    EXPECT(torch::equal(whole, model->embedding->weight), "the copies of a tied weight differ");
  }
}

// Each process has several parts, and the last one sends to the first. blocks + 2 layers are enough
// for two parts of each of four processes.
void compare_virtual_stages(Accelerator& accelerator, int64_t frozen_blocks) {
  constexpr int64_t kBlocks = 8;
  Tied model = make_tied_model(kBlocks), unsplit = make_tied_model(kBlocks);
  for (Tied* one : {&model, &unsplit}) {
    for (int64_t i = 0; i < frozen_blocks; ++i) {
      for (auto& parameter : (*one)->blocks[static_cast<size_t>(i)]->parameters())
        parameter.set_requires_grad(false);
    }
    if (frozen_blocks > 0) (*one)->embedding->weight.set_requires_grad(false);
  }
  const int parts = accelerator.world_size() == 1 ? 1 : 2 * accelerator.world_size();
  auto pipeline = prepare_pipeline(accelerator, model,
                                   {.split_points = even_points(*model, parts),
                                    .micro_batches = 2 * accelerator.world_size(),
                                    .virtual_stages = 2,
                                    .gather_output = true});
  compare_training(accelerator, model, unsplit, pipeline, 2 * accelerator.world_size(),
                   /*bitwise=*/false, token_batch, token_loss);
  const auto tokens = token_batch(7, 9).tokens;
  EXPECT(close(pipeline.forward(tokens), unsplit->forward(tokens)), "the outputs differ");
}

void several_virtual_stages(Accelerator& accelerator) { compare_virtual_stages(accelerator, 0); }

// Some virtual stages of a process get gradients, others do not.
void frozen_virtual_stages(Accelerator& accelerator) { compare_virtual_stages(accelerator, 5); }

// The gradients of two train_steps before an optimizer step add up, including tied weights.
void two_batches_a_step(Accelerator& accelerator) {
  Tied model = make_tied_model(), unsplit = make_tied_model();
  auto pipeline = prepare_pipeline(accelerator, model, {.micro_batches = 2});
  for (int step = 0; step < 2; ++step) {
    const auto [tokens, targets] = token_batch(step, 4);
    pipeline.train_step(tokens, targets, token_loss);
    train_unsplit(unsplit, tokens, targets, 2, token_loss);
  }
  const auto theirs = unsplit->named_parameters();
  for (const auto& item : model->named_parameters()) {
    EXPECT(close(accelerator.gradient(item.value()), theirs[item.key()].grad()),
           item.key() + ": the gradients differ");
  }
}

// Nothing is sent backward through frozen layers.
void frozen_layers(Accelerator& accelerator) {
  GPT model = make_gpt_model(), unsplit = make_gpt_model();
  for (GPT* one : {&model, &unsplit}) {
    for (const auto& item : (*one)->named_parameters()) {
      if (item.key().rfind("nf", 0) != 0 && item.key().rfind("head", 0) != 0) {
        item.value().set_requires_grad(false);
      }
    }
  }
  auto pipeline = prepare_pipeline(accelerator, model, {.micro_batches = 4});
  compare_training(accelerator, model, unsplit, pipeline, 4, /*bitwise=*/true, token_batch,
                   token_loss);
  for (GPT* one : {&model, &unsplit}) {
    for (const auto& parameter : (*one)->parameters()) parameter.set_requires_grad(true);
  }
  const auto [tokens, targets] = token_batch(5, 8);
  pipeline.train_step(tokens, targets, token_loss);
  train_unsplit(unsplit, tokens, targets, 4, token_loss);
  const auto theirs = unsplit->named_parameters();
  for (const auto& item : model->named_parameters()) {
    EXPECT(close(accelerator.gradient(item.value()), theirs[item.key()].grad()),
           item.key() + ": the gradients differ after it is trainable");
  }
}

void summed_loss(Accelerator& accelerator) {
  GPT model = make_gpt_model(), unsplit = make_gpt_model();
  auto pipeline = prepare_pipeline(
      accelerator, model, {.micro_batches = 3, .loss_reduction = coupler::LossReduction::kSum});
  const auto sum = [](const torch::Tensor& logits, const torch::Tensor& targets) {
    return torch::cross_entropy_loss(logits.flatten(0, 1), targets.flatten(), {},
                                     at::Reduction::Sum);
  };
  const auto [tokens, targets] = token_batch(0, 7);
  const double got = pipeline.train_step(tokens, targets, sum);
  const auto right = sum(unsplit->forward(tokens), targets);
  right.backward();
  EXPECT(std::abs(got - right.item<double>()) < 1e-9, "the sums differ");
  const auto theirs = unsplit->named_parameters();
  for (const auto& item : model->named_parameters()) {
    EXPECT(close(accelerator.gradient(item.value()), theirs[item.key()].grad()),
           item.key() + ": the gradients differ");
  }
}

// Sequences of other lengths, and alternating training and inference: shapes are exchanged again.
void other_shapes(Accelerator& accelerator) {
  GPT model = make_gpt_model(), unsplit = make_gpt_model();
  auto pipeline = prepare_pipeline(accelerator, model, {.micro_batches = 2, .gather_output = true});
  for (const int64_t length : {6, 3, 3, 5}) {
    auto [tokens, targets] = token_batch(0, 5);
    tokens = tokens.narrow(1, 0, length);
    targets = targets.narrow(1, 0, length);
    const double got = pipeline.train_step(tokens, targets, token_loss);
    const double right = token_loss(unsplit->forward(tokens), targets).item<double>();
    EXPECT(std::abs(got - right) < 1e-9, "the losses differ");
    EXPECT(close(pipeline.forward(tokens), unsplit->forward(tokens)), "the outputs differ");
  }
}

void measured_cut(Accelerator& accelerator) {
  GPT model = make_gpt_model(), unsplit = make_gpt_model();
  model->train();
  auto pipeline = prepare_pipeline(
      accelerator, model,
      {.micro_batches = 2, .gather_output = true, .example_inputs = {token_batch(0, 2).tokens}});
  EXPECT(model->is_training(), "measuring changed the model's mode");
  for (const auto& points : coupler::gather_object(accelerator, pipeline.split_points())) {
    EXPECT(points == pipeline.split_points(), "the processes split the model differently");
  }
  const auto tokens = token_batch(1, 4).tokens;
  EXPECT(close(pipeline.forward(tokens), unsplit->forward(tokens)), "the outputs differ");
}

// All processes get process 0's values, also of a model that no process has in memory.
void values_of_rank_0(Accelerator& accelerator) {
  const auto tokens = token_batch(0, 4).tokens;
  GPT unsplit = make_gpt_model();
  torch::manual_seed(100 + accelerator.rank());
  GPT differing(GPTOptions{.vocabulary = 17, .width = 16, .layers = 4, .heads = 2, .sequence = 6});
  differing->to(torch::kDouble);
  if (accelerator.rank() == 0) differing = make_gpt_model();
  auto pipeline = prepare_pipeline(accelerator, differing, {.gather_output = true});
  EXPECT(close(pipeline.forward(tokens.repeat({2, 1})), unsplit->forward(tokens.repeat({2, 1}))),
         "the values are not process 0's");

  GPT empty{nullptr};
  torch::manual_seed(9);
  {
    const coupler::EmptyWeights scope;
    empty = GPT(GPTOptions{.vocabulary = 17, .width = 16, .layers = 4, .heads = 2, .sequence = 6});
  }
  torch::manual_seed(9);
  GPT eager(GPTOptions{.vocabulary = 17, .width = 16, .layers = 4, .heads = 2, .sequence = 6});
  auto of_empty = prepare_pipeline(accelerator, empty, {.gather_output = true});
  EXPECT(torch::allclose(of_empty.forward(tokens), eager->forward(tokens), 1e-5, 1e-6),
         "a model made in EmptyWeights has different values");
}

void sequential(Accelerator& accelerator) {
  torch::nn::Sequential model = make_batch_norm_model(), unsplit = make_batch_norm_model();
  auto pipeline = prepare_pipeline(accelerator, model, {.micro_batches = 3});
  const auto batch_of = [](int step, int64_t rows) {
    auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(step));
    return std::pair{torch::randn({rows, 5}, generator, torch::kDouble),
                     torch::randint(0, 3, {rows}, generator, torch::kLong)};
  };
  const auto loss = [](const torch::Tensor& logits, const torch::Tensor& targets) {
    return torch::cross_entropy_loss(logits, targets);
  };
  compare_training(accelerator, model, unsplit, pipeline, 3, /*bitwise=*/true, batch_of, loss);
  // Batch norm statistics are on the stage that computes them, and are saved from there.
  const auto theirs = unsplit->named_buffers();
  accelerator.for_each_tensor(model, [&](const std::string& name, const torch::Tensor& value) {
    if (const auto* expected = theirs.find(name)) {
      EXPECT(torch::allclose(value.to(torch::kDouble), expected->to(torch::kDouble)),
             name + " differs");
    }
  });
}

// Needs training.mixed_precision.
void mixed_precision(Accelerator& accelerator) {
  torch::manual_seed(3);
  GPT model(GPTOptions{.vocabulary = 17, .width = 16, .layers = 4, .heads = 2, .sequence = 6});
  auto pipeline = prepare_pipeline(accelerator, model, {.micro_batches = 4});
  torch::optim::AdamW optimizer(model->parameters(), 1e-2);
  auto opt = accelerator.prepare(optimizer);
  GPT unsplit = make_gpt_model();
  const auto [tokens, targets] = token_batch(0, 8);
  double first = 0, last = 0;
  for (int step = 0; step < 20; ++step) {
    const auto cast = accelerator.autocast();
    last = pipeline.train_step(tokens, targets, token_loss);
    if (step == 0) first = last;
    accelerator.clip_grad_norm(model, 1.0);
    opt.step();
    opt.zero_grad();
  }
  const double right = token_loss(unsplit->forward(tokens), targets).item<double>();
  EXPECT(std::abs(first - right) < 0.05, "the first loss is far from the unsplit model's");
  EXPECT(last < 0.8 * first,
         "it does not learn: " + std::to_string(first) + " to " + std::to_string(last));
}

}  // namespace

std::vector<Check> pipeline_parity_checks() {
  return {{"inference", inference},
          {"gathered_output", gathered_output},
          {"only_own_layers_have_memory", only_own_layers_have_memory},
          {"training", training},
          {"training_from_named_points", training_from_named_points},
          {"tied_weights", tied_weights},
          {"virtual_stages", several_virtual_stages},
          {"frozen_virtual_stages", frozen_virtual_stages},
          {"two_batches_a_step", two_batches_a_step},
          {"frozen_layers", frozen_layers},
          {"summed_loss", summed_loss},
          {"other_shapes", other_shapes},
          {"measured_cut", measured_cut},
          {"values_of_rank_0", values_of_rank_0},
          {"sequential", sequential},
          {"mixed_precision", mixed_precision, /*alone=*/true}};
}
