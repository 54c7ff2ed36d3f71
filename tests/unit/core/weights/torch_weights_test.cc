#include "weight_files.h"
#include "weights/open_weights.h"

namespace coupler::weights {
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

// Fixtures of the reader's own tests: element i of a tensor is i.
std::string io_fixture(const std::string& name) {
  return COUPLER_SOURCE_DIR "/tests/unit/core/formats/fixtures/torch/" + name;
}

TEST_F(TorchWeights, OfEveryTypeAndProtocol_AreTheSame) {
  const WeightSource source = open(io_fixture("state_dict.pt"));
  auto tensors = plain(source);
  EXPECT_EQ(tensors.size(), 22u);
  EXPECT_EQ(source.aliases, (decltype(source.aliases){{"head.weight", "embedding.weight"}}));
  const float columns[] = {0, 3, 1, 4, 2, 5};  // of [[0, 1, 2], [3, 4, 5]]
  EXPECT_EQ(tensors.at("transposed").shape, (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(tensors.at("transposed").bytes,
            std::string(reinterpret_cast<const char*>(columns), sizeof columns));
  EXPECT_EQ(tensors.at("u8").bytes, std::string("\0\1\2\3\4\5", 6));
  EXPECT_EQ(tensors.at("empty").bytes, "");
  for (const char* name : {"protocol_4.pt", "protocol_5.pt"})
    EXPECT_EQ(plain(open(io_fixture(name))), tensors) << name;
  const WeightSource parameters = open(io_fixture("parameters.pt"));
  EXPECT_EQ(parameters.tensors.size(), 2u);
  EXPECT_EQ(parameters.aliases, (decltype(source.aliases){{"b", "a"}}));
}

TEST_F(TorchWeights, ThatSafetensorsOrThisReaderLack_AreRefused) {
  for (const char* name : {"complex128.pt", "old_format.pt", "script.pt"})
    EXPECT_NE(refusal(io_fixture(name), ErrorCode::kUnsupported), "accepted") << name;
  for (const char* name : {"conj.pt", "expanded.pt", "numpy.pt", "module.pt", "system.pt",
                           "eval.pt", "itself.pt", "no_checksums.pt"})
    EXPECT_NE(refusal(io_fixture(name), ErrorCode::kIo), "accepted") << name;
}

TEST_F(TorchWeights, OfAccelerate_AreOfTheModelThatIsAskedFor) {
  expect_as(open(fixture("accelerate")), "accelerate");
  expect_as(open(fixture("accelerate/pytorch_model.bin")), "accelerate");
  expect_as(open(fixture("accelerate"), {.model = 1, .key = {}}), "accelerate_1");
  EXPECT_TRUE(refusal(fixture("accelerate"), ErrorCode::kInvalidArgument, {.model = 2, .key = {}})
                  .ends_with("accelerate has no model 2, only lower numbers"));
}

TEST_F(TorchWeights, BelowTheRoot_AreNamedByAKey) {
  expect_as(open(fixture("nested/checkpoint.pth"), {.model = 0, .key = "state_dict"}), "nested");
  EXPECT_EQ(plain(open(fixture("nested/checkpoint.pth"), {.model = 0, .key = "ema"})).size(), 1u);
  const std::string path = "nested/checkpoint.pth: ";
  EXPECT_EQ(fixture_refusal("nested/checkpoint.pth"),
            path + "its root is not a state dict, but contains others");
  EXPECT_EQ(fixture_refusal("nested/checkpoint.pth", "model"), path + "it has no 'model'");
  EXPECT_EQ(fixture_refusal("nested/checkpoint.pth", "epoch"),
            path + "'epoch' is not a dictionary of tensors");
  EXPECT_EQ(fixture_refusal("accelerate/pytorch_model.bin", "model"),
            "accelerate/pytorch_model.bin: it has no 'model'");
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
      refusal(fixture("accelerate/optimizer.bin"), ErrorCode::kIo).find("it is not a state dict"),
      std::string::npos);
  put("x.pt", "text");
  EXPECT_EQ(refusal(at("x.pt"), ErrorCode::kIo),
            "x.pt: it is not a PyTorch file: torch.save writes zip archives");
}

}  // namespace
}  // namespace coupler::weights
