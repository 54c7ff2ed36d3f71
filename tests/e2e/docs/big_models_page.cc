// Runs the fragments of docs/big-models.md in a folder with the files that they name, one test for
// each fragment. Fragments that need a GPU are skipped if LibTorch sees none.
#include <coupler/language_model.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "fragments.h"
#include "fragments.inc"  // fragments()

torch::Tensor loss_of(Net& net, const torch::data::Example<>& batch) {
  return torch::mse_loss(net->forward(batch.data), batch.target);
}

void train(coupler::Accelerator& /*accelerator*/, int64_t /*batch_size*/) {}

std::shared_ptr<torch::nn::Module> make_gpt() {
  return coupler::make_language_model(coupler::ModelConfig::parse(
      R"({"model_type": "gptj", "n_embd": 4096, "n_head": 16, "n_layer": 28, "n_positions": 2048,
          "rotary_dim": 64, "vocab_size": 50400})"));
}

namespace {

coupler::Accelerator& the_accelerator() {
  static coupler::Accelerator accelerator;
  return accelerator;
}

// The working folder of all fragments, removed with the process.
class Place {
 public:
  Place() {
    std::string path = (std::filesystem::temp_directory_path() / "coupler-page-XXXXXX").string();
    if (mkdtemp(path.data()) == nullptr) throw std::runtime_error("cannot make " + path);
    path_ = path;
    std::filesystem::copy_file(FIRST_STATE_DICT, path_ / "first_state_dict.bin");
    std::filesystem::current_path(path_);
    Net net = the_accelerator().prepare(Net());
    the_accelerator().save_model(net, "checkpoint");
    the_accelerator().save_model(net, "sharded-gpt-j-6B", {.max_shard_size = "1KB"});
    the_accelerator().free_memory();
  }
  ~Place() {
    std::error_code ignored;
    std::filesystem::current_path("/", ignored);
    std::filesystem::remove_all(path_, ignored);
  }

 private:
  std::filesystem::path path_;
};

std::string without_blanks(std::string text) {
  text.erase(std::remove_if(text.begin(), text.end(),
                            [](unsigned char c) { return std::isspace(c) != 0; }),
             text.end());
  return text;
}

class Page : public ::testing::TestWithParam<Fragment> {};

TEST_P(Page, Runs) {
  static const Place here;
  const bool needs_gpu = GetParam().needs_gpu;
  if (needs_gpu && !torch::cuda::is_available()) GTEST_SKIP() << "needs a GPU";
  auto& accelerator = the_accelerator();
  const auto examples = [] {
    return coupler::data_loader(coupler::TensorDataset(torch::ones({4, 64}), torch::zeros({4, 10})),
                                {.batch_size = 2});
  };
  Net model, made;
  torch::optim::AdamW optimizer_made(made->parameters());
  auto [net, opt, batches, scheduler] = accelerator.prepare(
      made, optimizer_made, examples(), coupler::constant_schedule(optimizer_made));
  Names names{accelerator,
              model,
              torch::optim::AdamW(model->parameters()),
              examples(),
              net,
              opt,
              batches,
              scheduler,
              torch::data::Example<>(torch::ones({2, 64}), torch::zeros({2, 10})),
              torch::zeros({}),
              0,
              0,
              torch::nn::ModuleList(),
              torch::ones({3, 64}),
              {.max_memory = {{0, "1GB"}, {"cpu", "1GB"}}},
              1,
              AverageOfWeights()};
  ::testing::internal::CaptureStdout();
  GetParam().run(names);
  const std::string printed = ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(without_blanks(printed).find(without_blanks(GetParam().prints)), 0u)
      << printed << "but the page shows\n"
      << GetParam().prints;
  accelerator.free_memory();
}

std::vector<Fragment> of_the_page() {
  std::vector<Fragment> found;
  for (const Fragment& fragment : fragments()) {
    if (fragment.page == "big-models") found.push_back(fragment);
  }
  return found;
}

INSTANTIATE_TEST_SUITE_P(BigModels, Page, ::testing::ValuesIn(of_the_page()),
                         [](const auto& fragment) {
                           return "line" + std::to_string(fragment.param.line);
                         });

}  // namespace
