#include "formats/weight_index.h"
#include "weight_files.h"
#include "weights/open_weights.h"

namespace coupler::weights {
namespace {

using coupler::testing::plain;
using coupler::testing::PlainTensors;

class IndexWeights : public coupler::testing::WeightFilesTest {
 protected:
  // "w" in a.safetensors and "v" in b.safetensors, and the given index.
  void make(const std::map<std::string, std::string, std::less<>>& map) {
    write("m/a.safetensors", {{"w", {safetensors::DType::kU8, {1}, "a"}}});
    write("m/b.safetensors", {{"v", {safetensors::DType::kU8, {1}, "b"}}}, {{"tied", "v"}});
    put("m/model.safetensors.index.json",
        formats::format_weight_index({.total_size = 2, .weight_map = map}, "index"));
  }
  std::string refused(const std::map<std::string, std::string, std::less<>>& map) {
    std::filesystem::remove_all(at("m"));
    make(map);
    return refusal(at("m"), ErrorCode::kIo);
  }
};

TEST_F(IndexWeights, OfTorchFiles_AreAsPythonSaysTheyAre) {
  for (const char* path : {"numbered", "numbered/pytorch_model.bin.index.json"}) {
    // The fixture's folder also holds the file with the expected weights.
    const WeightSource source = open(fixture(path));
    const WeightSource expected = open(fixture("numbered/expected.safetensors"));
    EXPECT_EQ(plain(source), plain(expected));
    EXPECT_EQ(source.aliases, expected.aliases);
    EXPECT_EQ(source.files.size(), 3u);
  }
}

TEST_F(IndexWeights, ThatFitTheirFiles_AreRead_WithTiedNames) {
  make({{"w", "a.safetensors"}, {"v", "b.safetensors"}});
  const WeightSource source = open(at("m"));
  EXPECT_EQ(plain(source).size(), 2u);
  EXPECT_EQ(source.aliases.at("tied"), "v");
}

TEST_F(IndexWeights, OfTheOlderKind_AreRead) {
  write("m/first.safetensors", {{"w", {safetensors::DType::kU8, {1}, "a"}}});
  write("m/second.safetensors", {{"v", {safetensors::DType::kU8, {1}, "b"}}});
  put("m/index.json", R"({"w": "first.safetensors", "v": "second.safetensors"})");
  for (const char* path : {"m", "m/index.json"}) EXPECT_EQ(plain(open(at(path))).size(), 2u);
}

TEST_F(IndexWeights, OfAnyNameButOneInAFolder_AreFound) {
  make({{"w", "a.safetensors"}, {"v", "b.safetensors"}});
  std::filesystem::rename(at("m/model.safetensors.index.json"), at("m/mine.index.json"));
  EXPECT_EQ(plain(open(at("m"))).size(), 2u);
  std::filesystem::copy(at("m/mine.index.json"), at("m/other.index.json"));
  EXPECT_NE(refusal(at("m"), ErrorCode::kInvalidArgument).find("m has several indices, "),
            std::string::npos);
}

TEST_F(IndexWeights, ThatDoNotFitTheirFiles_AreRefused_NamingTheTensor) {
  const std::string at = "m/model.safetensors.index.json: ";
  EXPECT_EQ(refused({{"w", "a.safetensors"}, {"v", "c.safetensors"}}),
            at + "its file 'c.safetensors' is not in the same folder");
  EXPECT_EQ(refused({{"w", "a.safetensors"}, {"u", "a.safetensors"}, {"v", "b.safetensors"}}),
            at + "tensor 'u' should be in its file 'a.safetensors', but is not");
  EXPECT_EQ(refused({{"u", "a.safetensors"}, {"v", "b.safetensors"}}),
            at + "its file 'a.safetensors' has tensor 'w', which the index does not list");
  EXPECT_EQ(refused({{"w", "b.safetensors"}, {"v", "b.safetensors"}}),
            at + "tensor 'w' should be in its file 'b.safetensors', but is not");
  EXPECT_EQ(refused({{"w", "a.safetensors"}, {"v", "a.safetensors"}}),
            at + "tensor 'v' should be in its file 'a.safetensors', but is not");
  std::filesystem::remove_all(folder_ / "m");
  make({{"w", "a.safetensors"}, {"v", "b.safetensors"}});
  std::filesystem::remove(folder_ / "m/b.safetensors");
  write("m/b.safetensors",
        {{"v", {safetensors::DType::kU8, {1}, "b"}}, {"w", {safetensors::DType::kU8, {1}, "b"}}});
  EXPECT_EQ(refusal(folder_ / "m", ErrorCode::kIo),
            at + "its file 'b.safetensors' has tensor 'w', which should be in 'a.safetensors'");
}

TEST_F(IndexWeights, ATensorThatIsAnothersTiedName_IsRefused) {
  write("m/a.safetensors", {{"tied", {safetensors::DType::kU8, {1}, "a"}}});
  write("m/b.safetensors", {{"v", {safetensors::DType::kU8, {1}, "b"}}}, {{"tied", "v"}});
  put("m/model.safetensors.index.json",
      formats::format_weight_index(
          {.total_size = 2, .weight_map = {{"tied", "a.safetensors"}, {"v", "b.safetensors"}}},
          "index"));
  EXPECT_EQ(refusal(at("m"), ErrorCode::kIo),
            "m: 'tied' is both a tensor and an alias of tensor 'v'");
}

TEST_F(IndexWeights, OfNothing_AreRefused) {
  put("m/model.safetensors.index.json", R"({"metadata":{},"weight_map":{}})");
  EXPECT_EQ(refusal(at("m"), ErrorCode::kIo), "m: it contains no tensors");
  put("m/model.safetensors.index.json", "");
  EXPECT_TRUE(
      refusal(at("m"), ErrorCode::kIo).starts_with("m/model.safetensors.index.json: it is"));
}

}  // namespace
}  // namespace coupler::weights
