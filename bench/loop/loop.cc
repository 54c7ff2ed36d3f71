// The full loop of a training program (loader, accumulation, clipping, schedule) over an MLP, in
// turns, driven by bench/run: bench loop [--bare] --control SOCKET. A turn is a number of whole
// epochs. --bare runs only forward and backward, which every side must compute: a lower bound for
// any loop. The counterpart is bench/python/loop_in_turns.py.
#include <ATen/Functions.h>
#include <coupler/accelerator.h>
#include <coupler/data_loader.h>
#include <coupler/error.h>
#include <torch/optim/adamw.h>

#include <functional>
#include <string>

#include "control.h"
#include "models.h"
#include "program.h"

namespace coupler::bench::loop {
int program(int argc, char** argv) {
  Accelerator accelerator(argc, argv, {.gradient_accumulation_steps = 2});
  const bool bare = argc > 1 && std::string(argv[1]) == "--bare";
  if (argc != 3 + bare || std::string(argv[1 + bare]) != "--control") {
    throw Error(ErrorCode::kUsage, "usage: bench loop [--bare] --control SOCKET",
                {.subject = "bench loop", .hint = "start it with bench/run"});
  }
  constexpr int64_t kSamples = 6400, kBatch = 64, kSteps = 100000;
  auto model = bench::make_mlp();
  int64_t parameters = 0;
  for (const at::Tensor& parameter : model->parameters()) parameters += parameter.numel();
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  auto loader =
      data_loader(TensorDataset(at::rand({kSamples, 784}), at::randint(10, {kSamples}, at::kLong)),
                  {.batch_size = kBatch, .shuffle = true});
  auto [net, opt, batches, scheduler] =
      accelerator.prepare(model, optimizer, loader, linear_schedule(optimizer, {100, kSteps}));

  at::Tensor last;
  const auto train = [&, &net = net, &opt = opt, &batches = batches, &scheduler = scheduler](
                         const std::string&, int64_t steps) {
    for (int64_t done = 0; done < steps;) {
      for (auto& batch : batches) {
        auto step = accelerator.accumulate(net);
        auto loss = bench::loss_of(net->forward(batch.data), batch.target);
        accelerator.backward(loss);
        accelerator.clip_grad_norm(net, 1.0);
        opt.step();
        scheduler.step();
        opt.zero_grad();
        last = loss.detach();
        ++done;
      }
    }
  };
  const at::Tensor data = at::rand({kBatch, 784}), target = at::randint(10, {kBatch}, at::kLong);
  const auto compute = [&](const std::string&, int64_t steps) {
    auto bare_model = bench::make_mlp();
    for (int64_t done = 0; done < steps; ++done) {
      last = bench::loss_of(bare_model->forward(data), target);
      last.backward();
      bare_model->zero_grad();
    }
  };
  bench::Control control(argv[2 + bare]);
  control.serve(accelerator.rank(), parameters,
                {.ready = [] {},
                 .train = bare ? decltype(bench::Control::Turn::train)(compute) : train,
                 .loss = [&] { return last.item<double>(); }});
  return 0;
}

const Registration kRegistration("loop", program);

}  // namespace coupler::bench::loop
