// Errors are reported on every process, and if no data has been sent yet, the job continues. The
// checks that run alone end the job; pipeline_job_test reads their output.
#include <coupler/coupler.h>
#include <signal.h>
#include <unistd.h>

#include "models.h"

using coupler::Accelerator;
using coupler::prepare_pipeline;

namespace {

void expect_in(const std::string& text, const std::string& message) {
  EXPECT(message.find(text) != std::string::npos, "no '" + text + "' in: " + message);
}

void wrong_split_points(Accelerator& accelerator) {
  GPT model = make_gpt_model();
  const auto refusal = [&](const coupler::PipelineOptions& options) {
    return error_of([&] { prepare_pipeline(accelerator, model, options); });
  };
  std::vector<std::string> points = even_points(*model, accelerator.world_size());
  points.push_back("nf");
  const std::string many = refusal({.split_points = points});
  expect_in("split_points names " + std::to_string(accelerator.world_size()) + " layers", many);
  expect_in("te, blocks.0, blocks.1", many);
  if (accelerator.world_size() == 2) {
    expect_in("no layer 'block.1'; did you mean 'blocks.1'?",
              refusal({.split_points = {"block.1"}}));
    expect_in("split_points names 0 layers", refusal({.split_points = std::vector<std::string>()}));
    expect_in("'te' is the first layer", refusal({.split_points = "te"}));
  }
  expect_in("micro_batches is -1", refusal({.micro_batches = -1}));
  expect_in("virtual_stages is 0", refusal({.virtual_stages = 0}));
  if (accelerator.world_size() > 1) {
    expect_in("a multiple of the " + std::to_string(accelerator.world_size()) + " processes",
              refusal({.micro_batches = accelerator.world_size() + 1, .virtual_stages = 2}));
    expect_in("with 9 virtual stages each", refusal({.virtual_stages = 9}));
  }
  if (accelerator.rank() == 0) {
    expect_in("cannot compute example_inputs", refusal({.example_inputs = {torch::ones({2, 2})}}));
  } else {
    error_of([&] { prepare_pipeline(accelerator, model); });
  }
  prepare_pipeline(accelerator, model);
  expect_in("was prepared twice", refusal({}));
}

void wrong_models(Accelerator& accelerator) {
  Net no_chain;
  expect_in("does not list its layers", error_of([&] { prepare_pipeline(accelerator, no_chain); }));
  expect_in("coupler::PipelineLayers", error_of([&] { prepare_pipeline(accelerator, no_chain); }));
  struct Incomplete : TiedImpl {
    std::vector<coupler::PipelineLayer> pipeline_layers() override {
      auto layers = TiedImpl::pipeline_layers();
      layers.erase(layers.begin() + 1);
      return layers;
    }
  };
  auto incomplete = std::make_shared<Incomplete>();
  expect_in("the parameter 'blocks.0.weight' is in no layer",
            error_of([&] { prepare_pipeline(accelerator, incomplete); }));
  if (accelerator.world_size() > 1) {
    torch::nn::Sequential one{torch::nn::Linear(3, 3)};
    expect_in("has 1 layers", error_of([&] { prepare_pipeline(accelerator, one); }));
  }
}

void wrong_batches(Accelerator& accelerator) {
  GPT model = make_gpt_model();
  auto pipeline = prepare_pipeline(accelerator, model, {.micro_batches = 4});
  const auto [tokens, targets] = token_batch(0, 8);
  const auto train = [&](const torch::Tensor& input, const torch::Tensor& target) {
    return error_of([&] { pipeline.train_step(input, target, token_loss); });
  };
  expect_in("a batch of 3 rows cannot be split into 4 micro-batches",
            train(tokens.narrow(0, 0, 3), targets.narrow(0, 0, 3)));
  expect_in("the input has 8 rows, but the target has 7", train(tokens, targets.narrow(0, 0, 7)));
  expect_in("undefined tensor", train({}, targets));
  expect_in("undefined tensor", train(tokens, {}));
  expect_in("has no rows", error_of([&] { pipeline.forward(torch::ones({})); }));
  expect_in("no loss function is given", error_of([&, tokens = tokens, targets = targets] {
              pipeline.train_step(tokens, targets, {});
            }));
  if (accelerator.world_size() > 1) {
    expect_in("pipeline.forward", error_of([&, tokens = tokens, targets = targets] {
                if (pipeline.is_first()) {
                  pipeline.forward(tokens);
                } else {
                  pipeline.train_step(tokens, targets, token_loss);
                }
              }));
  }
  expect_in("train_step(input, target, loss)",
            error_of([&] { accelerator.backward(torch::ones({}, torch::requires_grad())); }));
  // After all of that the pipeline still works.
  GPT unsplit = make_gpt_model();
  const double right = token_loss(unsplit->forward(tokens), targets).item<double>();
  EXPECT(std::abs(pipeline.train_step(tokens, targets, token_loss) - right) < 1e-9,
         "the losses differ");
}

// ---- What ends the job ----

// Acts in micro-batch 3 (from 0) of the first batch.
template <class Act>
void in_last_stage(Accelerator& accelerator, const Act& act, int virtual_stages = 1) {
  GPT model = make_gpt_model();
  auto pipeline =
      prepare_pipeline(accelerator, model, {.micro_batches = 8, .virtual_stages = virtual_stages});
  const auto [tokens, targets] = token_batch(0, 8);
  int micro_batch = 0;
  pipeline.train_step(tokens, targets,
                      [&](const torch::Tensor& logits, const torch::Tensor& target) {
                        if (micro_batch++ == 3) return act(logits, target);
                        return token_loss(logits, target);
                      });
}

void killed_neighbor(Accelerator& accelerator) {
  in_last_stage(accelerator, [](const torch::Tensor& logits, const torch::Tensor&) {
    ::kill(::getpid(), SIGKILL);
    return logits;
  });
}

void failing_loss(Accelerator& accelerator) {
  in_last_stage(accelerator, [](const torch::Tensor& logits, const torch::Tensor&) {
    return torch::nll_loss(logits, logits);  // it rejects these shapes
  });
}

void failing_loss_of_virtual_stages(Accelerator& accelerator) {
  in_last_stage(
      accelerator,
      [](const torch::Tensor& logits, const torch::Tensor&) {
        return torch::nll_loss(logits, logits);
      },
      /*virtual_stages=*/2);
}

void loss_of_many_numbers(Accelerator& accelerator) {
  in_last_stage(accelerator,
                [](const torch::Tensor& logits, const torch::Tensor&) { return logits; });
}

void stopped_neighbor(Accelerator& accelerator) {
  in_last_stage(accelerator, [](const torch::Tensor& logits, const torch::Tensor&) {
    ::sleep(20);  // longer than backend.timeout
    return logits.sum();
  });
}

void just_prepared(Accelerator& accelerator) {
  GPT model = make_gpt_model();
  prepare_pipeline(accelerator, model);
}

}  // namespace

std::vector<Check> pipeline_misuse_checks() {
  return {{"wrong_split_points", wrong_split_points},
          {"wrong_models", wrong_models},
          {"wrong_batches", wrong_batches, /*alone=*/true},
          {"killed_neighbour", killed_neighbor, /*alone=*/true},
          {"failing_loss", failing_loss, /*alone=*/true},
          {"failing_loss_of_virtual_stages", failing_loss_of_virtual_stages, /*alone=*/true},
          {"loss_of_many_numbers", loss_of_many_numbers, /*alone=*/true},
          {"stopped_neighbour", stopped_neighbor, /*alone=*/true},
          {"just_prepared", just_prepared, /*alone=*/true}};
}
