// Trains a model in turns, driven by bench/run: bench steps --model mlp|gpt|gpt2-small --control
// SOCKET, plus configuration arguments. The mode profile:FILE writes a trace of the turn to FILE.
// The loop is the same as in the examples. The counterpart is bench/python/train_in_turns.py.
#include <c10/core/impl/VirtualGuardImpl.h>
#include <coupler/accelerator.h>
#include <coupler/error.h>
#include <torch/optim/adamw.h>

#include <string>
#include <vector>

#include "control.h"
#include "models.h"
#include "program.h"
#include "trace.h"

namespace coupler::bench::steps {
namespace {

const std::string kProfile = "profile:";

template <class Model>
void serve(Accelerator& accelerator, Model model, std::vector<Batch> batches,
           const std::string& control_path) {
  const c10::Device device = accelerator.device();
  for (Batch& batch : batches) batch = {batch.data.to(device), batch.target.to(device)};
  int64_t parameters = 0;
  for (const at::Tensor& parameter : model->parameters()) parameters += parameter.numel();
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-4));
  auto [net, opt] = accelerator.prepare(model, optimizer);

  at::Tensor last;
  size_t taken = 0;  // over all turns: training does not depend on how steps are divided
  const auto train = [&, &net = net, &opt = opt](const std::string& mode, int64_t steps) {
    const Trace trace(mode.rfind(kProfile, 0) == 0 ? mode.substr(kProfile.size()) : "");
    for (int64_t i = 0; i < steps; ++i) {
      const Batch& batch = batches[taken++ % batches.size()];
      auto step = accelerator.accumulate(net);
      at::Tensor loss;
      {
        const auto autocast = accelerator.autocast();
        loss = loss_of(net->forward(batch.data), batch.target);
      }
      accelerator.backward(loss);
      opt.step();
      opt.zero_grad();
      last = loss.detach();
    }
    if (!device.is_cpu())
      c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
  };
  Control control(control_path);
  control.serve(accelerator.rank(), parameters,
                {.ready = [&] { accelerator.wait_for_everyone(); },
                 .train = train,
                 .loss = [&] { return last.item<double>(); }});
}

}  // namespace

int program(int argc, char** argv) {
  Accelerator accelerator(argc, argv);
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() != 4 || words[0] != "--model" || words[2] != "--control" ||
      (words[1] != "mlp" && words[1] != "gpt" && words[1] != "gpt2-small")) {
    throw Error(ErrorCode::kUsage, "usage: bench steps --model mlp|gpt|gpt2-small --control SOCKET",
                {.subject = "bench steps", .hint = "start it with bench/run"});
  }
  const auto seed = static_cast<uint64_t>(100 + accelerator.rank());
  if (words[1] == "mlp") {
    serve(accelerator, bench::make_mlp(), bench::mlp_batches(seed), words[3]);
  } else if (words[1] == "gpt") {
    serve(accelerator, bench::make_gpt(), bench::gpt_batches(seed), words[3]);
  } else {
    serve(accelerator, bench::make_gpt2_small(), bench::gpt2_small_batches(seed), words[3]);
  }
  return 0;
}

const Registration kRegistration("steps", program);

}  // namespace coupler::bench::steps
