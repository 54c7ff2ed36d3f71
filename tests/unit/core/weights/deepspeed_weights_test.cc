#include "weight_files.h"
#include "weights/open_weights.h"

namespace coupler::weights {
namespace {

namespace fs = std::filesystem;
using coupler::testing::plain;

class DeepSpeedWeights : public coupler::testing::WeightFilesTest {
 protected:
  void expect_as(const WeightSource& source, const std::string& expected) {
    const WeightSource right = open(fixture(expected + "/expected.safetensors"));
    EXPECT_EQ(plain(source), plain(right));
    EXPECT_EQ(source.aliases, right.aliases);
  }
};

TEST_F(DeepSpeedWeights, OfAStep_AreTheModule) {
  expect_as(open(fixture("deepspeed/global_step3")), "deepspeed");
  expect_as(open(fixture("deepspeed")), "deepspeed");
  expect_as(open(fixture("deepspeed/global_step3/mp_rank_00_model_states.pt"),
                 {.model = 0, .key = "module"}),
            "deepspeed");
}

TEST_F(DeepSpeedWeights, OfAUniversalCheckpoint_AreTheParametersIn32Bits_AndTheRestOfTheModule) {
  expect_as(open(fixture("universal/global_step3_universal")), "universal");
  expect_as(open(fixture("universal")), "universal");
}

TEST_F(DeepSpeedWeights, OfAUniversalCheckpointAlone_AreItsParameters) {
  fs::create_directories(at("u"));
  fs::copy(fixture("universal/global_step3_universal/zero"), at("u/zero"),
           fs::copy_options::recursive);
  const WeightSource source = open(at("u"));
  EXPECT_EQ(source.tensors.size(), 3u);
  EXPECT_EQ(source.tensors[0].name, "embedding.weight");
  EXPECT_EQ(source.tensors[0].dtype, safetensors::DType::kF32);
  fs::remove(at("u/zero/norm.bias/fp32.pt"));
  EXPECT_EQ(refusal(at("u"), ErrorCode::kIo), "u/zero/norm.bias/fp32.pt is missing");
}

TEST_F(DeepSpeedWeights, ThatAreDivided_AreRefused_WithWhatJoinsThem) {
  put("zero3/zero_pp_rank_0_mp_rank_00_model_states.pt");
  put("zero3/zero_pp_rank_1_mp_rank_00_model_states.pt");
  EXPECT_EQ(refusal(at("zero3"), ErrorCode::kUnsupported),
            "zero3: its weights are sharded by ZeRO 3 (zero_pp_rank_1_mp_rank_00_model_states.pt), "
            "and the shards are in files that contain Python classes, which are not supported");
  put("tp/mp_rank_00_model_states.pt");
  put("tp/mp_rank_01_model_states.pt");
  EXPECT_EQ(refusal(at("tp"), ErrorCode::kUnsupported),
            "tp: its weights are divided among 2 files, mp_rank_00_model_states.pt to "
            "mp_rank_01_model_states.pt (tensor parallel), which do not say how");
}

TEST_F(DeepSpeedWeights, WithALatestThatLeadsNowhere_AreRefused) {
  put("d/latest", "global_step9\n");
  EXPECT_EQ(refusal(at("d"), ErrorCode::kIo),
            "d/latest names 'global_step9', which is not a folder next to it");
  put("d/latest", "../d");
  EXPECT_EQ(refusal(at("d"), ErrorCode::kIo),
            "d/latest names '../d', which is not a folder next to it");
}

TEST_F(DeepSpeedWeights, OfMoreThanOneModel_AreRefused) {
  EXPECT_TRUE(refusal(fixture("deepspeed"), ErrorCode::kInvalidArgument, {.model = 1, .key = {}})
                  .ends_with("is a DeepSpeed checkpoint of one model"));
}

TEST_F(DeepSpeedWeights, OtherFoldersAndFiles_AreRefused_SayingWhatTheyAre) {
  put("fsdp/pytorch_model_fsdp_0/.metadata");
  const std::string rule =
      " is a torch.distributed.checkpoint, as Accelerate writes with FSDP: the positions of its "
      "tensors are in a pickle of Python classes, which is not supported";
  EXPECT_EQ(refusal(at("fsdp"), ErrorCode::kUnsupported), "fsdp/pytorch_model_fsdp_0" + rule);
  EXPECT_EQ(refusal(at("fsdp/pytorch_model_fsdp_0"), ErrorCode::kUnsupported),
            "fsdp/pytorch_model_fsdp_0" + rule);
  const auto code = ErrorCode::kInvalidArgument;
  fs::create_directory(at("empty"));
  EXPECT_EQ(refusal(at("empty"), code), "empty has no weights in a known format");
  put("steps/global_step5/mp_rank_00_model_states.pt");
  EXPECT_EQ(
      refusal(at("steps"), code),
      "steps is a folder of DeepSpeed checkpoints (it contains global_step5), but its weights "
      "are not where they should be");
  put("a.txt");
  EXPECT_EQ(refusal(at("a.txt"), code), "a.txt does not have the name of a weights file");
  EXPECT_EQ(refusal(at("none"), ErrorCode::kIo), "none does not exist");
  write("w.safetensors", random_tensors(1));
  EXPECT_EQ(refusal(at("w.safetensors"), code, {.model = 0, .key = "model"}),
            "w.safetensors has no dictionaries for --key to choose from");
  EXPECT_EQ(refusal(at("w.safetensors"), code, {.model = 1, .key = {}}),
            "w.safetensors is a file with one model: --model is for folders");
}

}  // namespace
}  // namespace coupler::weights
