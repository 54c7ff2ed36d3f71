// stamp_job STEPS [MILLISECONDS A STEP]: a training whose whole state says how many steps it has
// made: every element of every parameter is t (t + 1) / 2 after step t, of every momentum buffer
// -t. It goes on when a checkpoint cannot be saved, at the end as well.
#include <coupler/coupler.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

struct StampImpl : torch::nn::Module {
  StampImpl()
      : a(register_parameter("a", torch::zeros({7}))),
        b(register_parameter("b", torch::zeros({33, 5}))),
        c(register_parameter("c", torch::zeros({2000}))) {}
  torch::Tensor forward() { return -(a.sum() + b.sum() + c.sum()); }
  torch::Tensor a, b, c;
};
TORCH_MODULE(Stamp);

int main(int argc, char** argv) {
  coupler::Accelerator accelerator(argc, argv);
  const int64_t steps = argc > 1 ? std::atoll(argv[1]) : 0;
  const std::chrono::milliseconds pace(argc > 2 ? std::atoll(argv[2]) : 0);

  Stamp model;
  // Gradients of -1, a rate of 1 and a momentum of 1: whole numbers, which float holds exactly.
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(1).momentum(1));
  auto loader =
      coupler::data_loader(coupler::TensorDataset(torch::zeros({steps, 1}), torch::zeros({steps})),
                           {.batch_size = accelerator.world(), .split_batches = true});
  // Every rank steps as often: one sample of its own each time.
  auto [net, opt, batches] = accelerator.prepare(model, optimizer, loader);
  for (int64_t epoch = 0; epoch < accelerator.world(); ++epoch) {
    for (auto& batch : batches) {
      static_cast<void>(batch);
      accelerator.backward(net->forward());
      opt.step();
      opt.zero_grad();
      std::this_thread::sleep_for(pace);
    }
  }
  try {
    accelerator.end_training();
  } catch (const coupler::Error& error) {
    if (error.code() != coupler::ErrorCode::kIo) throw;
    std::fprintf(stderr, "not saved at the end: %s\n", error.what());
  }
}
