// A tracked training run, for tracking_test.cc:
//   tracked_training MODE
// plain: a few steps; find: then requests trackers, including one that does not exist; forget: logs
// before init_trackers; tensor: logs a tensor with many elements; throws: a custom tracker throws;
// unused: never calls init_trackers; media: logs images, a table and a file.
#include <ATen/Functions.h>
#include <coupler/accelerator.h>
#include <coupler/error.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <fstream>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>

namespace {

// Writes a line for each entry, to a separate file for each rank.
class EveryRank : public coupler::Tracker {
 public:
  std::string name() const override { return "every_rank"; }
  bool main_process_only() const override { return false; }
  void start(const coupler::TrackerRun& run) override {
    file_.open("rank_" + std::to_string(run.rank) + ".txt");
  }
  void log(const coupler::TrackedStep& entry) override { file_ << entry.step << std::endl; }

 private:
  std::ofstream file_;
};

class Throws : public coupler::Tracker {
 public:
  std::string name() const override { return "throws"; }
  void log(const coupler::TrackedStep&) override { throw std::runtime_error("I cannot"); }
};

}  // namespace

int main(int argc, char** argv) {
  coupler::register_tracker("every_rank", [] { return std::make_shared<EveryRank>(); });
  coupler::Accelerator accelerator(argc, argv);
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "forget") accelerator.log({{"loss", 0.5}});
  if (mode == "unused") {
    accelerator.end_training();
    return 0;
  }
  coupler::TrackerOptions options;
  options.run_name = "first";
  if (mode == "throws") options.trackers.push_back(std::make_shared<Throws>());
  accelerator.init_trackers("proj", {{"lr", 0.1}, {"layers", 1}, {"bf16", false}}, options);
  if (mode == "tensor") accelerator.log({{"scores", at::zeros({2, 3})}});

  torch::nn::Linear model(4, 1);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = accelerator.prepare(model, optimizer);
  for (int64_t i = 0; i < 10; ++i) {
    auto step = accelerator.accumulate(net);
    const auto loss = net->forward(at::ones({2, 4})).square().mean();
    accelerator.backward(loss);
    opt.step();
    opt.zero_grad();
    accelerator.log({{"loss", loss},
                     {"steps", at::scalar_tensor(i, at::kLong)},
                     {"even", at::scalar_tensor(i % 2 == 0, at::kBool)},
                     {"half", at::scalar_tensor(0.5, at::kHalf)},
                     {"size", size_t{2}},
                     {"phase", "train"}},
                    10 * i);
  }
  if (mode == "media") {
    const auto pixels = at::arange(30, at::kByte).reshape({2, 5, 3});
    accelerator.log_images({{"rows_first", pixels, "bytes"},
                            {"channels_first", pixels.permute({2, 0, 1}).to(at::kFloat).div(255)}});
    accelerator.log_table({"words", {"text", "loss"}, {{std::string("a"), 0.5}}}, 7);
    accelerator.log_artifact(argv[0], "program");
    try {
      accelerator.log_images({{"wrong", at::zeros({5, 5, 5})}});
    } catch (const coupler::Error& error) {
      std::cerr << error.what() << std::endl;
    }
  }
  if (mode == "find") {
    std::cout << "csv " << (accelerator.get_tracker("csv") != nullptr) << std::endl;
    accelerator.wait_for_everyone();
    accelerator.get_tracker("json");
  }
  accelerator.end_training();
  std::cout << "trained\n";
  return 0;
}
