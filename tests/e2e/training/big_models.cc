// Models from checkpoints on many ranks: a file's data is in memory once per machine, however many
// ranks use it, and the model can then be prepared.
#include <coupler/big_model.h>
#include <coupler/coupler.h>

#include <fstream>
#include <sstream>

#include "check.h"
#include "shared_folder.h"

namespace {

using coupler::Accelerator;

constexpr int64_t kWidth = 1024;  // 4 MiB per layer

struct DeepImpl : torch::nn::Module {
  DeepImpl() {
    for (int i = 0; i < 3; ++i) {
      layers->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const auto& layer : *layers) x = torch::tanh(layer->as<torch::nn::Linear>()->forward(x));
    return x;
  }
  torch::nn::ModuleList layers = register_module("layers", torch::nn::ModuleList());
};
TORCH_MODULE(Deep);

Deep without_memory() {
  const coupler::EmptyWeights empty;
  return Deep();
}

struct MappedPages {
  double resident = 0, share = 0;  // KiB; share: each page divided by how many processes map it
};

MappedPages pages_of(const std::string& file) {
  std::ifstream in("/proc/self/smaps");
  MappedPages result;
  bool of_file = false;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string first;
    double number = 0;
    words >> first;
    if (first.find('-') != std::string::npos) {
      of_file = line.find(file) != std::string::npos;
    } else if (of_file && (first == "Rss:" || first == "Pss:") && words >> number) {
      (first == "Rss:" ? result.resident : result.share) += number;
    }
  }
  return result;
}

void checkpoints_are_in_memory_once(Accelerator& accelerator) {
  const SharedFolder folder(accelerator);
  const std::string file = folder.path() + "/model.safetensors";
  const auto input = torch::linspace(-1, 1, kWidth).unsqueeze(0);
  torch::manual_seed(8);
  Deep original;
  torch::NoGradGuard no_grad;
  const auto expected = original->forward(input);
  std::vector<torch::Tensor> weights;
  for (const auto& weight : original->parameters()) weights.push_back(weight.clone());
  auto prepared = accelerator.prepare(original);
  accelerator.save_model(prepared, folder.path());
  accelerator.free_memory();
  accelerator.wait_for_everyone();
  {
    Deep model = without_memory();
    const auto placed = coupler::load_checkpoint_and_dispatch(
        model, file, {.device_map = coupler::DeviceMap{{"", "cpu"}}});
    // A product's last bits may depend on its operands' alignment, which the file determines.
    EXPECT((model->forward(input) - expected).abs().max().item<double>() < 1e-6,
           "the model's output differs");
    for (size_t i = 0; i < weights.size(); ++i)
      EXPECT(torch::equal(model->parameters()[i], weights[i]), "a weight differs");
    accelerator.wait_for_everyone();  // all ranks have touched all pages
    const MappedPages pages = pages_of(file);
    const double size = 3.0 * kWidth * kWidth * sizeof(float) / 1024;
    EXPECT(pages.resident >= size, "only " + std::to_string(pages.resident) + " KiB are mapped");
    EXPECT(pages.share <= size / accelerator.world_size() * 1.1,
           "this rank's share of the pages is " + std::to_string(pages.share) + " KiB");
    accelerator.wait_for_everyone();  // all ranks have measured
  }
  Deep trained = without_memory();
  coupler::load_checkpoint_in_model(trained, folder.path());
  auto net = accelerator.prepare(trained);
  EXPECT((net->forward(input) - expected).abs().max().item<double>() < 1e-6,
         "the prepared model's output differs");
  accelerator.free_memory();
}

}  // namespace

std::vector<Check> big_model_checks() {
  return {{"checkpoints_are_in_memory_once", checkpoints_are_in_memory_once}};
}
