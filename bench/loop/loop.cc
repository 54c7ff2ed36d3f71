// The full loop of a training program (loader, accumulation, clipping, schedule), in turns, driven
// by bench/run: bench loop [--kernels] [--model mlp|conv-net|gpt] --control SOCKET. A turn is a
// number of whole epochs. --kernels calls only LibTorch's kernels of the MLP's steps, on the same
// batch: what any loop over LibTorch reaches at best. The counterpart is
// bench/python/loop_in_turns.py.
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <coupler/accelerator.h>
#include <coupler/data_loader.h>
#include <coupler/error.h>
#include <torch/optim/adamw.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "control.h"
#include "models.h"
#include "program.h"

namespace coupler::bench::loop {
namespace {

constexpr int64_t kBatch = 64, kSteps = 100000, kAccumulated = 2;

struct Arguments {
  bool kernels = false;
  std::string model = "mlp", control;
};

Arguments parse(int argc, char** argv) {
  Arguments given;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--kernels") {
      given.kernels = true;
    } else if ((word == "--model" || word == "--control") && i + 1 < argc) {
      (word == "--model" ? given.model : given.control) = argv[++i];
    } else {
      throw Error(ErrorCode::kUsage, "bench loop: unknown argument " + word,
                  {.subject = word, .hint = "start it with bench/run"});
    }
  }
  if (given.control.empty()) {
    throw Error(ErrorCode::kUsage, "usage: bench loop [--kernels] [--model NAME] --control SOCKET",
                {.subject = "bench loop", .hint = "start it with bench/run"});
  }
  return given;
}

void serve(Accelerator& accelerator, const Arguments& given, int64_t parameters,
           const decltype(bench::Control::Turn::train)& train, const at::Tensor& last) {
  bench::Control control(given.control);
  control.serve(accelerator.rank(), parameters,
                {.ready = [] {}, .train = train, .loss = [&] { return last.item<double>(); }});
}

template <class Model>
void run(Accelerator& accelerator, const Arguments& given, Model model, const TensorDataset& data,
         int64_t batch_size) {
  int64_t parameters = 0;
  for (const at::Tensor& parameter : model->parameters()) parameters += parameter.numel();
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  auto loader = data_loader(data, {.batch_size = batch_size, .shuffle = true});
  auto [net, opt, batches, scheduler] =
      accelerator.prepare(model, optimizer, loader, linear_schedule(optimizer, {100, kSteps}));
  at::Tensor last;
  serve(
      accelerator, given, parameters,
      [&, &net = net, &opt = opt, &batches = batches, &scheduler = scheduler](const std::string&,
                                                                              int64_t steps) {
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
      },
      last);
}

void run_kernels(Accelerator& accelerator, const Arguments& given) {
  const at::Tensor data = at::rand({kBatch, 784}), target = at::randint(10, {kBatch}, at::kLong);
  auto model = bench::make_mlp();
  const std::vector<at::Tensor> parameters = model->parameters();
  std::vector<at::Tensor> first_moments, second_moments, numbers;
  for (const at::Tensor& parameter : parameters) {
    first_moments.push_back(at::zeros_like(parameter));
    second_moments.push_back(at::zeros_like(parameter));
    numbers.push_back(at::zeros({}));
  }
  const auto update = [&] {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : parameters) gradients.push_back(parameter.grad());
    double power = 0;
    for (const at::Tensor& norm : at::_foreach_norm(gradients)) {
      power += std::pow(norm.item<double>(), 2);
    }
    if (power > 1) at::_foreach_mul_(gradients, 1 / std::sqrt(power));
    at::_foreach_add_(numbers, 1);
    at::_fused_adamw_(parameters, gradients, first_moments, second_moments, {}, numbers,
                      /*lr=*/1e-3, /*beta1=*/0.9, /*beta2=*/0.999, /*weight_decay=*/1e-2,
                      /*eps=*/1e-8, /*amsgrad=*/false, /*maximize=*/false);
    model->zero_grad();
  };
  at::Tensor last;
  serve(
      accelerator, given, 0,
      [&](const std::string&, int64_t steps) {
        for (int64_t done = 0; done < steps; ++done) {
          last = bench::loss_of(model->forward(data), target);
          (last / kAccumulated).backward();
          if (done % kAccumulated == kAccumulated - 1) update();
        }
      },
      last);
}

TensorDataset images(int64_t samples, at::IntArrayRef shape) {
  std::vector<int64_t> sizes = {samples};
  sizes.insert(sizes.end(), shape.begin(), shape.end());
  return {at::rand(sizes), at::randint(10, {samples}, at::kLong)};
}

TensorDataset texts(int64_t samples) {
  const at::Tensor text = at::randint(8192, {samples, 65}, at::kLong);
  return {text.narrow(1, 0, 64).contiguous(), text.narrow(1, 1, 64).contiguous()};
}

}  // namespace

int program(int argc, char** argv) {
  Accelerator accelerator(argc, argv, {.gradient_accumulation_steps = kAccumulated});
  const Arguments given = parse(argc, argv);
  if (given.kernels) {
    run_kernels(accelerator, given);
  } else if (given.model == "gpt") {
    run(accelerator, given, bench::make_gpt(), texts(160), 4);
  } else if (given.model == "conv-net") {
    run(accelerator, given, bench::make_conv_net(), images(1280, {1, 28, 28}), kBatch);
  } else {
    run(accelerator, given, bench::make_mlp(), images(6400, {784}), kBatch);
  }
  return 0;
}

const Registration kRegistration("loop", program);

}  // namespace coupler::bench::loop
