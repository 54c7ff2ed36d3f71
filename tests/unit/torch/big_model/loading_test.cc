// load_checkpoint_in_model, and invalid files.
#include <sys/wait.h>
#include <unistd.h>

#include "small_gpt.h"

namespace coupler::big_model {
namespace {

using coupler::testing::empty_gpt;
using coupler::testing::Folder;
using coupler::testing::hinted_message_of;
using coupler::testing::output_of;
using coupler::testing::real_gpt;
using coupler::testing::SmallGpt;
using coupler::testing::TensorMap;
using coupler::testing::tensors_of;
using coupler::testing::write_safetensors;

class Loading : public ::testing::Test {
 protected:
  const Folder here_;
  SmallGpt whole_ = real_gpt();
  const at::Tensor expected_ = output_of(whole_);
};

TEST_F(Loading, IntoAModelWithValues_WritesThemInPlace) {
  write_safetensors(here_.at("model.safetensors"), tensors_of(*whole_));
  torch::manual_seed(99);
  SmallGpt model;
  const void* const place = model->norm->weight.const_data_ptr();
  load_checkpoint_in_model(model, here_.path());
  EXPECT_EQ(model->norm->weight.const_data_ptr(), place);
  EXPECT_TRUE(output_of(model).equal(expected_));
}

TEST_F(Loading, IntoAnEmptyModel_MapsTheFile_WhichWritesDoNotReach) {
  write_safetensors(here_.at("model.safetensors"), tensors_of(*whole_));
  SmallGpt model = empty_gpt();
  load_checkpoint_in_model(model, here_.path());
  EXPECT_TRUE(output_of(model).equal(expected_));
  {
    const torch::NoGradGuard no_grad;
    model->norm->weight.mul_(2);
    model->blocks[0]->as<coupler::testing::BlockImpl>()->scale.fill_(7);
  }
  SmallGpt again = empty_gpt();
  load_checkpoint_in_model(again, here_.path());
  EXPECT_TRUE(output_of(again).equal(expected_));
}

// The folder described on Accelerate's page about big models.
TEST_F(Loading, ShardsWithTheOlderIndex_AreRead) {
  TensorMap first = tensors_of(*whole_), second;
  std::string index;
  for (auto it = first.begin(); it != first.end();) {
    const bool to_second = it->first.find("blocks.1") == 0;
    index += (index.empty() ? "{" : ",\n") + ("\"" + it->first + "\": \"") +
             (to_second ? "second" : "first") + ".safetensors\"";
    if (to_second) second.insert(*it);
    it = to_second ? first.erase(it) : std::next(it);
  }
  write_safetensors(here_.at("first.safetensors"), first);
  write_safetensors(here_.at("second.safetensors"), second);
  std::ofstream(here_.at("index.json")) << index << "}";
  for (const char* place : {"cpu", "disk"}) {
    SmallGpt model = empty_gpt();
    const auto placed =
        load_checkpoint_and_dispatch(model, here_.path(), {.device_map = DeviceMap{{"", place}}});
    EXPECT_TRUE(output_of(model).equal(expected_));
  }
}

TEST_F(Loading, OfAnotherModel_ListsEveryTensor) {
  TensorMap tensors = tensors_of(*whole_);
  tensors.erase("norm.weight");
  tensors.erase("blocks.0.up.bias");
  tensors["norm.bias"] = torch::ones({5});
  tensors["extra.weight"] = torch::ones({1});
  write_safetensors(here_.at("model.safetensors"), tensors);
  SmallGpt model = empty_gpt();
  const std::string message =
      hinted_message_of([&] { load_checkpoint_in_model(model, here_.at("model.safetensors")); });
  for (const char* text :
       {"missing: blocks.0.up.bias, norm.weight", "unexpected: extra.weight",
        "of another shape: norm.bias is [5], but the model's is [32]", "strict = false"}) {
    EXPECT_NE(message.find(text), std::string::npos) << text << " in " << message;
  }
  EXPECT_TRUE(model->norm->weight.is_meta());
  tensors["norm.bias"] = torch::zeros({32});
  write_safetensors(here_.at("other.safetensors"), tensors);
  load_checkpoint_in_model(model, here_.at("other.safetensors"), {}, {.strict = false});
  EXPECT_TRUE(model->norm->weight.equal(torch::ones({32})));  // as its constructor sets it
}

TEST_F(Loading, TensorThatStaysWithoutValues_IsNamed) {
  struct Net : torch::nn::Module {
    Net() { register_parameter("weight", torch::empty({2}, torch::kMeta)); }
  } model;
  const std::string message = hinted_message_of([&] {
    static_cast<void>(dispatch_model(model, {{"", "cpu"}}));
  });
  EXPECT_NE(message.find("'weight' is on the meta device"), std::string::npos) << message;
}

TEST_F(Loading, ToTheDiskWithoutAFolder_SaysWhatIsMissing) {
  write_safetensors(here_.at("model.safetensors"), tensors_of(*whole_));
  SmallGpt model = empty_gpt();
  const std::string message = hinted_message_of([&] {
    load_checkpoint_in_model(model, here_.path(), {{"", "disk"}});
  });
  EXPECT_NE(message.find("offload_folder"), std::string::npos) << message;
}

TEST_F(Loading, OffloadFolderOfAnotherModel_IsRefused) {
  SmallGpt small = real_gpt(3, 16);
  { const auto placed = disk_offload(small, here_.at("offload")); }
  SmallGpt model = empty_gpt();
  const std::string message = hinted_message_of([&] {
    dispatch_model(model, {{"", "disk"}}, {.offload_folder = here_.at("offload")});
  });
  EXPECT_NE(message.find("has another shape"), std::string::npos) << message;
  std::filesystem::remove(here_.at("offload/index.json"));
  EXPECT_NE(hinted_message_of([&] {
              dispatch_model(model, {{"", "disk"}}, {.offload_folder = here_.at("offload")});
            }).find("it has no index.json"),
            std::string::npos);
}

TEST_F(Loading, FileThatIsShortenedWhileItIsUsed_IsNamed) {
  const std::string path = here_.at("model.safetensors");
  SmallGpt large = real_gpt(4, 256);
  write_safetensors(path, tensors_of(*large));
  SmallGpt model = empty_gpt(4, 256);
  const auto placed =
      load_checkpoint_and_dispatch(model, path, {.device_map = DeviceMap{{"", "disk"}}});
  std::filesystem::resize_file(path, 4096);
  const std::string message = hinted_message_of([&] { output_of(model); });
  EXPECT_NE(message.find(path + ": it is shorter than the "), std::string::npos) << message;
}

using LoadingDeathTest = Loading;

// Weights on the CPU are read through their mapping, so no call can report the error.
TEST_F(LoadingDeathTest, FileThatIsShortenedUnderTheCpusWeights_EndsTheProcessNamingIt) {
  const std::string path = here_.at("model.safetensors");
  SmallGpt large = real_gpt(4, 256);
  write_safetensors(path, tensors_of(*large));
  EXPECT_EXIT(
      {
        SmallGpt model = empty_gpt(4, 256);
        load_checkpoint_in_model(model, path);
        std::filesystem::resize_file(path, 4096);
        output_of(model);
      },
      ::testing::ExitedWithCode(1), "coupler: error: .*model.safetensors was truncated");
}

}  // namespace
}  // namespace coupler::big_model
