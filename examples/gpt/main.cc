// Trains a small GPT on text, byte by byte, and prints loss and speed. The same program runs on one
// process or many, over any backend named in the configuration:
//
//   examples/gpt/get-text kjv.txt
//   gpt --text kjv.txt
//   coupler launch -n 2 -o backend.use=gloo_cpu gpt --text kjv.txt
//   coupler launch -n 4 -o parallel.pipeline=2 -o parallel.tensor=2 gpt --text kjv.txt
//   gpt --text first.txt --evaluate rest.txt   # perplexity with int8 and int4 weights
//   coupler launch -n 2 -o checkpoint.dir=checkpoints -o checkpoint.every=100 gpt --text kjv.txt
#include <coupler/coupler.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <optional>

#include "evaluate.h"
#include "model.h"
#include "peak_memory.h"
#include "text.h"

namespace {

struct Arguments {
  std::string text = "kjv.txt";
  std::string evaluate;
  GPTOptions model;
  int64_t steps = 200;
  int64_t batch_size = 16;
  int64_t log_every = 10;
  double learning_rate = 1e-3;
  uint64_t seed = 0;
};

void add_options(CLI::App& app, Arguments& arguments) {
  const auto positive = [&](const char* name, int64_t& value, const char* what) {
    app.add_option(name, value, what)->check(CLI::PositiveNumber)->capture_default_str();
  };
  app.add_option("--text", arguments.text, "the file to train on")->capture_default_str();
  app.add_option(
      "--evaluate", arguments.evaluate,
      "a text not trained on; prints its perplexity at the end, with weights of 32, 8 and "
      "4 bits");
  positive("--steps", arguments.steps, "batches per process");
  positive("--batch-size", arguments.batch_size, "sequences per step and process");
  positive("--seq", arguments.model.sequence, "bytes per sequence");
  positive("--layers", arguments.model.layers, "transformer blocks");
  positive("--width", arguments.model.width, "size of the hidden state; a multiple of --heads");
  positive("--heads", arguments.model.heads, "attention heads");
  positive("--log-every", arguments.log_every, "steps between two lines of output");
  app.add_option("--lr", arguments.learning_rate, "learning rate")->capture_default_str();
  app.add_option("--seed", arguments.seed, "seed of initial values and order")
      ->capture_default_str();
}

at::Tensor next_byte_loss(const at::Tensor& logits, const at::Tensor& target) {
  return torch::cross_entropy_loss(logits.flatten(0, 1), target.flatten());
}

// Training progress, which no prepared object holds; it is saved in checkpoints with them.
struct Progress {
  int64_t steps = 0;
  double loss = 0;  // last printed loss, over all processes

  void save(coupler::StateDict& state) const {
    state.set("steps", steps);
    state.set("loss", loss);
  }
  void load(const coupler::StateDict& state) {
    steps = state.integer("steps");
    loss = state.number("loss");
  }
};

// Tokens per second since the last line, over all processes.
class Speed {
 public:
  double per_second(double tokens) {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    return tokens / seconds;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// Builds the model without memory: prepare materializes only what each process keeps, so the model
// may be larger than a process's memory.
GPT build(const GPTOptions& options) {
  const coupler::EmptyWeights scope;
  return GPT(options);
}

// The first process evaluates; all processes gather the full parameters for it.
void print_perplexity(coupler::Accelerator& accelerator, GPT& net, const Arguments& arguments) {
  const auto whole = coupler::summon_full_parameters(net, /*writeback=*/false);
  if (!accelerator.is_main_process()) return;
  for (const Evaluation& result : evaluate(net, arguments.model, arguments.evaluate, 512)) {
    char line[128];
    std::snprintf(line, sizeof line, "%-8s loss %.5f  perplexity %.4f", result.weights, result.loss,
                  result.perplexity);
    accelerator.print(line);
  }
}

int train(coupler::Accelerator& accelerator, const Arguments& arguments) {
  torch::manual_seed(arguments.seed);
  GPT model = build(arguments.model);
  torch::optim::AdamW optimizer(model->parameters(),
                                torch::optim::AdamWOptions(arguments.learning_rate));
  auto loader = coupler::data_loader(Text(arguments.text, arguments.model.sequence),
                                     {.batch_size = arguments.batch_size,
                                      .shuffle = true,
                                      .drop_last = true,
                                      .seed = arguments.seed});
  int64_t parameters = 0;
  for (const auto& parameter : model->parameters()) parameters += parameter.numel();
  // Each rank of a pipeline keeps some blocks; all other meshes are the business of prepare.
  std::optional<coupler::PipelineParallel> stages;
  if (accelerator.mesh().size("pipeline") > 1)
    stages.emplace(coupler::prepare_pipeline(accelerator, model));
  GPT net = stages ? model : accelerator.prepare(model);
  auto [opt, batches] = accelerator.prepare(optimizer, loader);

  const auto step_tokens = static_cast<double>(arguments.batch_size * arguments.model.sequence *
                                               accelerator.mesh().size("data+shard+expert"));
  accelerator.print(parameters, " parameters, ", accelerator.world_size(), " processes, backend ",
                    accelerator.backend(), ", ", batches.size(), " steps per epoch");
  // Writes nothing unless training.log_with names a tracker.
  accelerator.init_trackers("gpt", {{"parameters", parameters},
                                    {"learning_rate", arguments.learning_rate},
                                    {"batch_size", arguments.batch_size},
                                    {"sequence", arguments.model.sequence}});
  Progress progress;
  accelerator.register_for_checkpointing(progress);
  accelerator.resume();  // from the newest checkpoint of -o checkpoint.dir, if there is one
  const int64_t resumed = progress.steps;
  Speed speed, overall;
  while (progress.steps < arguments.steps) {
    for (auto& batch : batches) {
      auto step = accelerator.accumulate(net);
      // If parallel.context is set, each rank of a group has its part of the sequence.
      auto part = accelerator.context_parallel({{batch.data, 1}, {batch.target, 1}});
      at::Tensor loss;
      {
        auto casting = accelerator.autocast();  // if training.mixed_precision is set
        loss = stages ? torch::tensor(stages->train_step(batch.data, batch.target, next_byte_loss))
                      : next_byte_loss(net->forward(batch.data), batch.target);
      }
      if (!stages) accelerator.backward(loss);  // which is in train_step
      accelerator.clip_grad_norm(net, 1.0);
      opt.step();
      opt.zero_grad();

      const int64_t done = ++progress.steps;
      if (done % arguments.log_every == 0 || done == arguments.steps) {
        progress.loss = accelerator.reduce(loss.detach(), coupler::ReduceOp::kMean).item<double>();
        const int64_t counted = std::min((done - 1) % arguments.log_every + 1, done - resumed);
        const double rate = speed.per_second(step_tokens * static_cast<double>(counted));
        char line[128];
        std::snprintf(line, sizeof line, "step %lld  loss %.4f  %.0f tokens/s",
                      static_cast<long long>(done), progress.loss, rate);
        accelerator.print(line);
        accelerator.log({{"loss", progress.loss}, {"tokens_per_second", rate}}, done);
      }
      if (done == arguments.steps) break;
    }
  }
  accelerator.end_training();
  char line[128];
  std::snprintf(line, sizeof line, "final loss: %.6f (%.3f bits per byte)", progress.loss,
                progress.loss / std::log(2.0));
  accelerator.print(line);
  std::snprintf(line, sizeof line, "tokens per second: %.0f",
                overall.per_second(step_tokens * static_cast<double>(progress.steps - resumed)));
  accelerator.print(line);
  accelerator.print("memory per rank: ", memory_per_rank(accelerator));
  if (!arguments.evaluate.empty()) print_perplexity(accelerator, net, arguments);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  coupler::Accelerator accelerator(argc, argv);
  CLI::App app{"Trains a small GPT on text, byte by byte."};
  Arguments arguments;
  add_options(app, arguments);
  try {
    app.parse(argc, argv);
    if (arguments.model.width % arguments.model.heads != 0)
      throw CLI::ValidationError("--width", std::to_string(arguments.model.width) +
                                                " is not a multiple of --heads " +
                                                std::to_string(arguments.model.heads));
    if (!arguments.evaluate.empty() && accelerator.mesh().size("pipeline+tensor") > 1)
      throw CLI::ValidationError("--evaluate",
                                 "needs whole layers on one process: set parallel.pipeline and "
                                 "parallel.tensor to 1");
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return train(accelerator, arguments);
}
