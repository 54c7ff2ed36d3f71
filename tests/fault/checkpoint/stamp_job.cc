// stamp_job STEPS [MILLISECONDS PER STEP] [BY HAND]: a training job whose whole state encodes its
// step: after step t every element of every parameter is t (t + 1) / 2, and of every momentum
// buffer -t. It continues if a checkpoint cannot be saved, also at the end. BY HAND: it calls
// save_state itself every that many steps, independently of checkpoint.every.
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

// A failing disk does not end the job.
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
  // Gradients of -1, a rate of 1 and a momentum of 1 give integers, which float represents exactly.
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(1).momentum(1));
  auto loader =
      coupler::data_loader(coupler::TensorDataset(torch::zeros({steps, 1}), torch::zeros({steps})),
                           {.batch_size = accelerator.world_size(), .split_batches = true});
  // All ranks take the same number of steps, each with its own sample.
  auto [net, opt, batches] = accelerator.prepare(model, optimizer, loader);
  accelerator.resume();
  int64_t made = 0;
  for (int64_t epoch = batches.next_epoch(); epoch < accelerator.world_size(); ++epoch) {
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
