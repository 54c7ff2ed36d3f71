// stamp_job STEPS [MILLISECONDS A STEP] [BY HAND]: a training whose whole state says how many steps
// it has made: every element of every parameter is t (t + 1) / 2 after step t, of every momentum
// buffer -t. It goes on when a checkpoint cannot be saved, at the end as well. BY HAND: after each
// so many steps it calls save_state itself, whatever checkpoint.every says.
#include <coupler/coupler.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
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

namespace {

// A failing disk is no reason to end.
void try_to_save(const std::function<void()>& save, const char* when) {
  try {
    save();
  } catch (const coupler::Error& error) {
    if (error.code() != coupler::ErrorCode::kIo) throw;
    std::fprintf(stderr, "not saved %s: %s\n", when, error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  coupler::Accelerator accelerator(argc, argv);
  const int64_t steps = argc > 1 ? std::atoll(argv[1]) : 0;
  const std::chrono::milliseconds pace(argc > 2 ? std::atoll(argv[2]) : 0);
  const int64_t by_hand = argc > 3 ? std::atoll(argv[3]) : 0;

  Stamp model;
  // Gradients of -1, a rate of 1 and a momentum of 1: whole numbers, which float holds exactly.
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(1).momentum(1));
  auto loader =
      coupler::data_loader(coupler::TensorDataset(torch::zeros({steps, 1}), torch::zeros({steps})),
                           {.batch_size = accelerator.world(), .split_batches = true});
  // Every rank steps as often: one sample of its own each time.
  auto [net, opt, batches] = accelerator.prepare(model, optimizer, loader);
  accelerator.resume();
  int64_t made = 0;
  for (int64_t epoch = batches.next_epoch(); epoch < accelerator.world(); ++epoch) {
    for (auto& batch : batches) {
      static_cast<void>(batch);
      accelerator.backward(net->forward());
      opt.step();
      opt.zero_grad();
      if (by_hand > 0 && ++made % by_hand == 0)
        try_to_save([&] { accelerator.save_state(); }, "by hand");
      std::this_thread::sleep_for(pace);
    }
  }
  try_to_save([&] { accelerator.end_training(); }, "at the end");
}
