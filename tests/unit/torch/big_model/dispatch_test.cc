// Models on the CPU whose weights are used in their files.
#include <ATen/ops/ones.h>

#include <fstream>

#include "base/process.h"
#include "small_gpt.h"

namespace coupler::big_model {
namespace {

using coupler::testing::empty_gpt;
using coupler::testing::file_at;
using coupler::testing::Folder;
using coupler::testing::hinted_message_of;
using coupler::testing::output_of;
using coupler::testing::real_gpt;
using coupler::testing::SmallGpt;
using coupler::testing::tensors_of;
using coupler::testing::write_safetensors;

class Dispatch : public ::testing::Test {
 protected:
  Dispatch() { write_safetensors(file(), tensors_of(*whole_)); }
  std::string file() const { return here_.at("model.safetensors"); }
  bool same(SmallGpt& model) { return output_of(model).equal(expected_); }

  const Folder here_;
  SmallGpt whole_ = real_gpt();
  const at::Tensor expected_ = output_of(whole_);
};

TEST_F(Dispatch, OnTheCpu_WeightsLieInTheirFile) {
  SmallGpt model = empty_gpt();
  const auto placed =
      load_checkpoint_and_dispatch(model, file(), {.device_map = DeviceMap{{"", "cpu"}}});
  EXPECT_TRUE(same(model));
  EXPECT_EQ(file_at(model->norm->weight.const_data_ptr()), file());
  EXPECT_TRUE(model->head->weight.is_same(model->embedding->weight));
  EXPECT_EQ(device_map(model).to_json(), placed.device_map().to_json());
  EXPECT_TRUE(model->norm->weight.requires_grad());
}

TEST_F(Dispatch, OnTheDisk_WeightsComeAsTheyAreUsed) {
  SmallGpt model = empty_gpt();
  const auto placed =
      load_checkpoint_and_dispatch(model, file(), {.device_map = DeviceMap{{"", "disk"}}});
  EXPECT_EQ(model->norm->weight.unsafeGetTensorImpl()->unsafe_storage().data(), nullptr);
  for (int pass = 0; pass < 3; ++pass) EXPECT_TRUE(same(model)) << pass;
}

TEST_F(Dispatch, WithoutAnAccelerator_AutoPutsAllOnTheCpu) {
  SmallGpt model = empty_gpt();
  const auto placed = load_checkpoint_and_dispatch(model, file());
  EXPECT_TRUE(same(model));
  EXPECT_EQ(placed.device_map().device_of("blocks.1.up.weight"), MapDevice::cpu());
}

TEST_F(Dispatch, OfAnotherType_ConvertsAtLoadOrForEachUse) {
  auto halves = tensors_of(*whole_);
  for (auto& [name, tensor] : halves) tensor = tensor.to(torch::kHalf);
  write_safetensors(here_.at("half.safetensors"), halves);
  SmallGpt rounded = real_gpt();
  load_checkpoint_in_model(rounded, here_.at("half.safetensors"));
  const at::Tensor expected = output_of(rounded);
  EXPECT_FALSE(expected.equal(expected_));
  for (const char* place : {"cpu", "disk"}) {
    for (const std::string& folder : {std::string(), here_.at("offload")}) {
      SmallGpt model = empty_gpt();
      const auto placed = load_checkpoint_and_dispatch(
          model, here_.at("half.safetensors"),
          {.device_map = DeviceMap{{"", place}}, .offload_folder = folder});
      EXPECT_TRUE(output_of(model).equal(expected)) << place << " " << folder;
    }
  }
  EXPECT_TRUE(std::filesystem::exists(here_.at("offload/norm.weight.dat")));
  SmallGpt model = empty_gpt();
  const auto placed = load_checkpoint_and_dispatch(
      model, file(), {.device_map = DeviceMap{{"", "disk"}}, .dtype = torch::kBFloat16});
  EXPECT_EQ(model->norm->weight.scalar_type(), torch::kBFloat16);
}

TEST_F(Dispatch, LoadedAndThenDispatched_IsTheSame) {
  const DeviceMap map{{"embedding", "cpu"}, {"head", "cpu"}, {"norm", "cpu"}, {"blocks", "disk"}};
  SmallGpt model = empty_gpt();
  load_checkpoint_in_model(model, file(), map, {.offload_folder = here_.at("offload")});
  EXPECT_TRUE(model->blocks[0]->as<coupler::testing::BlockImpl>()->up->weight.is_meta());
  EXPECT_FALSE(std::filesystem::exists(here_.at("offload/blocks.0.up.weight.dat")));  // named only
  const auto placed = dispatch_model(model, map, {.offload_folder = here_.at("offload")});
  EXPECT_TRUE(same(model));
}

TEST_F(Dispatch, ModelWithValues_GoesToTheDisk_AndAccelerateReadsIt) {
  SmallGpt model = real_gpt();
  const auto placed = disk_offload(model, here_.at("offload"));
  EXPECT_TRUE(same(model));
  EXPECT_EQ(std::filesystem::file_size(here_.at("offload/blocks.2.up.weight.dat")),
            128u * 32u * sizeof(float));
  SmallGpt again = empty_gpt();
  load_checkpoint_in_model(again, here_.at("offload"), {}, {.strict = false});
  EXPECT_TRUE(same(again));
}

// With weights of the compute dtype, and of another one, which are read and converted for each use.
TEST_F(Dispatch, Bounded_DropsWhatItUsed) {
  constexpr int64_t kLayers = 12, kWidth = 512;  // 8 MiB per block
  SmallGpt large = real_gpt(kLayers, kWidth);
  const at::Tensor expected = output_of(large);
  auto tensors = tensors_of(*large);
  for (const at::ScalarType stored : {at::kFloat, at::kDouble}) {
    for (auto& [name, tensor] : tensors) tensor = tensor.to(stored);
    const std::string stored_file = here_.at(std::string(c10::toString(stored)) + ".safetensors");
    write_safetensors(stored_file, tensors);
    if (stored == at::kDouble) {
      tensors.clear();
      large = SmallGpt(nullptr);
    }
    SmallGpt model = empty_gpt(kLayers, kWidth);
    const uint64_t bound = resident_bytes() + (uint64_t{72} << 20);
    const auto placed = load_checkpoint_and_dispatch(model, stored_file,
                                                     {.device_map = DeviceMap{{"", "disk"}},
                                                      .max_memory = {{"cpu", bound}},
                                                      .dtype = at::kFloat});
    uint64_t most = 0;
    for (int pass = 0; pass < 2; ++pass) {
      EXPECT_TRUE(output_of(model).allclose(expected, 1e-5, 1e-6));
      most = std::max(most, resident_bytes());
    }
    EXPECT_LT(most, bound) << stored;
  }
}

// What comes into memory after the model was placed takes the place of weights that stayed.
TEST_F(Dispatch, Bounded_MakesRoomForWhatComesLater) {
  constexpr int64_t kLayers = 12, kWidth = 512;  // 8 MiB per block
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  SmallGpt large = real_gpt(kLayers, kWidth);
  const at::Tensor expected = output_of(large);
  const std::string large_file = here_.at("large.safetensors");
  write_safetensors(large_file, tensors_of(*large));
  SmallGpt model = empty_gpt(kLayers, kWidth);
  const uint64_t before = resident_bytes(), bound = before + 112 * kMiB;
  const auto placed = load_checkpoint_and_dispatch(
      model, large_file, {.device_map = DeviceMap{{"", "disk"}}, .max_memory = {{"cpu", bound}}});
  EXPECT_TRUE(output_of(model).allclose(expected, 1e-5, 1e-6));
  EXPECT_GT(resident_bytes(), before + 36 * kMiB) << "units stay while there is room";
  const at::Tensor taken = at::ones({int64_t{80} << 20}, at::kByte);
  for (int pass = 0; pass < 2; ++pass) {
    EXPECT_TRUE(output_of(model).allclose(expected, 1e-5, 1e-6));
    EXPECT_LT(resident_bytes(), bound);
  }
}

TEST_F(Dispatch, BoundThatCannotHold_SaysWhatIsNeeded) {
  SmallGpt model = empty_gpt();
  const std::string message = hinted_message_of([&] {
    load_checkpoint_and_dispatch(
        model, file(), {.device_map = DeviceMap{{"", "disk"}}, .max_memory = {{"cpu", "1MiB"}}});
  });
  EXPECT_NE(message.find("max_memory gives the CPU 1.0 MiB, but "), std::string::npos) << message;
  EXPECT_TRUE(model->norm->weight.is_meta());
}

TEST_F(Dispatch, MapThatDoesNotFit_IsRefused_AndTheModelStays) {
  const struct {
    DeviceMap map;
    const char* what;
  } cases[] = {
      {{{"embedding", "cpu"}}, "blocks.0"},
      {{{"", "cpu"}, {"nowhere", "disk"}}, "nowhere"},
      {{{"", "cpu"}, {"head", "disk"}}, "head.weight"},
      {{{"", 3}}, "accelerator 3"},
  };
  for (const auto& wrong : cases) {
    SmallGpt model = empty_gpt();
    const std::string message = hinted_message_of(
        [&] { load_checkpoint_and_dispatch(model, file(), {.device_map = wrong.map}); });
    EXPECT_NE(message.find(wrong.what), std::string::npos) << message;
    EXPECT_TRUE(model->norm->weight.is_meta());
  }
}

TEST_F(Dispatch, Twice_IsRefused_AndAfterwardsAllowed) {
  SmallGpt model = real_gpt();
  {
    const auto placed = cpu_offload(model, torch::kCPU);
    EXPECT_NE(
        hinted_message_of([&] { cpu_offload(model, torch::kCPU); }).find("is already dispatched"),
        std::string::npos);
  }
  EXPECT_NE(hinted_message_of([&] { device_map(model); }).find("is not dispatched"),
            std::string::npos);
  const auto placed = cpu_offload(model, torch::kCPU);
  EXPECT_TRUE(same(model));
}

TEST_F(Dispatch, PlacedParameters_CannotBeWrittenToNorMoved) {
  SmallGpt model = empty_gpt();
  const auto placed =
      load_checkpoint_and_dispatch(model, file(), {.device_map = DeviceMap{{"", "disk"}}});
  const torch::NoGradGuard no_grad;
  EXPECT_NE(hinted_message_of([&] { model->norm->weight.fill_(1); }).find("'norm.weight'"),
            std::string::npos);
  EXPECT_NE(hinted_message_of([&] { model->to(torch::kMeta); }).find("cannot be moved"),
            std::string::npos);
  EXPECT_TRUE(same(model));
}

TEST_F(Dispatch, WhenItsHandleIsGone_ValuesOnTheDiskAreToo) {
  SmallGpt model = empty_gpt();
  {
    const auto placed =
        load_checkpoint_and_dispatch(model, file(), {.device_map = DeviceMap{{"", "disk"}}});
  }
  EXPECT_ANY_THROW(output_of(model));
}

}  // namespace
}  // namespace coupler::big_model
