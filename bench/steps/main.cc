// Trains a model in turns, as bench/run says: --model mlp|gpt --control SOCKET, and the arguments
// of the configuration. Its loop is that of the examples. The counterpart is
// bench/python/train_in_turns.py.
#include <coupler/accelerator.h>
#include <coupler/error.h>
#include <torch/optim/adamw.h>

#include <string>

#include "control.h"
#include "models.h"

namespace coupler::bench {
namespace {

template <class Model>
void serve(Accelerator& accelerator, Model model, const std::vector<Batch>& batches,
           const std::string& control_path) {
  int64_t parameters = 0;
  for (const at::Tensor& parameter : model->parameters()) parameters += parameter.numel();
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-4));
  auto [net, opt] = accelerator.prepare(model, optimizer);

  at::Tensor last;
  const auto train = [&, &net = net, &opt = opt](int64_t steps) {
    for (int64_t i = 0; i < steps; ++i) {
      const Batch& batch = batches[static_cast<size_t>(i) % batches.size()];
      auto step = accelerator.accumulate(net);
      auto loss = loss_of(net->forward(batch.data), batch.target);
      accelerator.backward(loss);
      opt.step();
      opt.zero_grad();
      last = loss.detach();
    }
  };
  Control control(control_path);
  control.serve(accelerator.rank(), parameters,
                {.ready = [&] { accelerator.wait_for_everyone(); },
                 .train = train,
                 .loss = [&] { return last.item<double>(); }});
}

}  // namespace
}  // namespace coupler::bench

int main(int argc, char** argv) {
  coupler::Accelerator accelerator(argc, argv);
  std::string model, control;
  for (int i = 1; i + 1 < argc; i += 2) {
    (std::string(argv[i]) == "--model" ? model : control) = argv[i + 1];
  }
  const auto seed = static_cast<uint64_t>(100 + accelerator.rank());
  using namespace coupler::bench;  // NOLINT(google-build-using-namespace): a main function
  if (model == "mlp" && !control.empty()) {
    serve(accelerator, make_mlp(), mlp_batches(seed), control);
  } else if (model == "gpt" && !control.empty()) {
    serve(accelerator, make_gpt(), gpt_batches(seed), control);
  } else {
    throw coupler::Error(coupler::ErrorCode::kUsage, "--model mlp|gpt --control SOCKET is missing",
                         {.subject = "--model", .hint = "start it with bench/run"});
  }
}
