#include "weights/torch_weights.h"

#include "weight_files.h"

namespace coupler {
namespace {

using coupler::testing::file_text;
using coupler::testing::plain;

class TorchWeights : public coupler::testing::WeightFilesTest {
 protected:
  void expect_as(const WeightSource& source, const std::string& expected) {
    const WeightSource right = open(fixture(expected + "/expected.safetensors"));
    EXPECT_EQ(plain(source), plain(right));
    EXPECT_EQ(source.aliases, right.aliases);
  }
  std::string fixture_refusal(const std::string& path, const std::string& key = "") const {
    std::string text =
        refusal(fixture(path), ErrorCode::kInvalidArgument, {.model = 0, .key = key});
    return text.erase(0, fixture("").size());
  }
};

TEST_F(TorchWeights, WithAnyStrides_AreAsPythonSaysTheyAre) {
  expect_as(open(fixture("strided/views.pt")), "strided");
}

TEST_F(TorchWeights, OfAccelerate_AreOfTheModelThatIsAskedFor) {
  expect_as(open(fixture("accelerate")), "accelerate");
  expect_as(open(fixture("accelerate/pytorch_model.bin")), "accelerate");
  expect_as(open(fixture("accelerate"), {.model = 1, .key = {}}), "accelerate_1");
  EXPECT_TRUE(refusal(fixture("accelerate"), ErrorCode::kInvalidArgument, {.model = 2, .key = {}})
                  .ends_with("accelerate has no model 2, only lower ones"));
}

TEST_F(TorchWeights, BelowTheRoot_AreNamedByAKey) {
  expect_as(open(fixture("nested/checkpoint.pth"), {.model = 0, .key = "state_dict"}), "nested");
  EXPECT_EQ(plain(open(fixture("nested/checkpoint.pth"), {.model = 0, .key = "ema"})).size(), 1u);
  const std::string path = "nested/checkpoint.pth: ";
  EXPECT_EQ(fixture_refusal("nested/checkpoint.pth"),
            path + "its root is no state dict, but holds others");
  EXPECT_EQ(fixture_refusal("nested/checkpoint.pth", "model"), path + "it holds no 'model'");
  EXPECT_EQ(fixture_refusal("nested/checkpoint.pth", "epoch"),
            path + "'epoch' is no dictionary of tensors");
  EXPECT_EQ(fixture_refusal("accelerate/pytorch_model.bin", "model"),
            "accelerate/pytorch_model.bin: it holds no 'model'");
  try {
    open(fixture("nested/checkpoint.pth"));
  } catch (const Error& error) {
    EXPECT_EQ(error.detail().hint, "name the dictionary with --key: 'state_dict', 'ema'");
  }
}

TEST_F(TorchWeights, WithDamagedBytes_AreRefused) {
  std::string bytes = file_text(fixture("accelerate/pytorch_model_1.bin"));
  const WeightSource source = open(fixture("accelerate/pytorch_model_1.bin"));
  const std::string weight = coupler::testing::bytes_of(source.tensors[0]);
  const size_t place = bytes.find(weight);
  ASSERT_NE(place, std::string::npos);
  bytes[place] = static_cast<char>(bytes[place] ^ 1);
  put("bad.bin", bytes);
  EXPECT_TRUE(refusal(at("bad.bin"), ErrorCode::kIo).starts_with("bad.bin: entry '"));
}

TEST_F(TorchWeights, ThatAreNoStateDict_AreRefused) {
  EXPECT_NE(
      refusal(fixture("accelerate/optimizer.bin"), ErrorCode::kIo).find("it is no state dict"),
      std::string::npos);
  put("x.pt", "text");
  EXPECT_EQ(refusal(at("x.pt"), ErrorCode::kIo),
            "x.pt: it is not a PyTorch file: torch.save writes zip archives");
}

}  // namespace
}  // namespace coupler
