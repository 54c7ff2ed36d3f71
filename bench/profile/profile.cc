// The cost of [profile] per step: the loop of bench steps over the GPT. bench/run starts it without
// a profile, and with a schedule whose rounds are one waiting pass and 11 recorded passes. A turn
// of 10 steps is one round: the pass before its clock starts is the waiting one, and the pass after
// it writes the trace. A turn reports the seconds of that last pass as its loss.
//   bench profile --control SOCKET
#include <coupler/accelerator.h>
#include <torch/optim/adamw.h>

#include <chrono>
#include <string>

#include "control.h"
#include "models.h"
#include "program.h"

namespace coupler::bench::profile {
int program(int argc, char** argv) {
  Accelerator accelerator(argc, argv);
  const auto values = values_of(argc, argv, "--control SOCKET");
  const auto batches = bench::gpt_batches(static_cast<uint64_t>(100 + accelerator.rank()));
  GPT model = bench::make_gpt();
  int64_t parameters = 0;
  for (const at::Tensor& parameter : model->parameters()) parameters += parameter.numel();
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-4));
  auto [net, opt] = accelerator.prepare(model, optimizer);

  size_t passes = 0;
  const auto pass = [&, &net = net, &opt = opt] {
    const bench::Batch& batch = batches[passes++ % batches.size()];
    {
      auto step = accelerator.accumulate(net);
      accelerator.backward(bench::loss_of(net->forward(batch.data), batch.target));
      opt.step();
      opt.zero_grad();
    }
    accelerator.on_step_end();
  };
  bench::Control control(values[0]);
  control.serve(accelerator.rank(), parameters,
                {.ready =
                     [&] {
                       pass();
                       accelerator.wait_for_everyone();
                     },
                 .train =
                     [&](const std::string&, int64_t steps) {
                       for (int64_t i = 0; i < steps; ++i) pass();
                     },
                 .loss =
                     [&] {
                       const auto start = std::chrono::steady_clock::now();
                       pass();
                       const std::chrono::duration<double> time =
                           std::chrono::steady_clock::now() - start;
                       return time.count();
                     }});
  return 0;
}

const Registration kRegistration("profile", program);

}  // namespace coupler::bench::profile
