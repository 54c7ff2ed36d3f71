#include "weights/offload_folder.h"

#include "weight_files.h"

namespace coupler::weights {
namespace {

using coupler::testing::plain;
using coupler::testing::PlainTensors;
using safetensors::DType;

class OffloadFolder : public coupler::testing::WeightFilesTest {
 protected:
  void offload(const std::string& name, const WeightSource& source) const {
    OffloadFolderWriter writer(at(name));
    for (const WeightTensor& tensor : source.tensors) writer.add(tensor);
    writer.finish();
  }
};

TEST_F(OffloadFolder, OfAccelerate_IsReadAsItSays) {
  EXPECT_EQ(plain(open(fixture("offloaded"))),
            plain(open(fixture("offloaded/expected.safetensors"))));
}

TEST_F(OffloadFolder, Written_ReadsBackTheSame_AndAsAccelerateWritesIt) {
  const WeightSource source = open(fixture("offloaded"));
  offload("o", source);
  EXPECT_EQ(plain(open(at("o"))), plain(source));
  for (const WeightTensor& tensor : source.tensors) {
    EXPECT_EQ(coupler::testing::file_text(at("o/" + tensor.name + ".dat")),
              coupler::testing::file_text(fixture("offloaded/" + tensor.name + ".dat")));
  }
  EXPECT_TRUE(is_offload_folder(at("o")));
}

TEST_F(OffloadFolder, WithReferences_ReadsThemWhereTheyAre_AndKeepsWhatWasThere) {
  const PlainTensors tensors{{"w", {DType::kU8, {2}, "ab"}}, {"v", {DType::kU8, {1}, "c"}}};
  write("model.safetensors", tensors);
  offload("o", open(fixture("offloaded")));
  OffloadFolderWriter writer(at("o"));
  EXPECT_FALSE(is_offload_folder(at("o")));  // no half-written folder is read
  writer.refer("renamed", at("model.safetensors"), "w", DType::kU8);
  writer.finish();
  const auto read = plain(open(at("o")));
  EXPECT_EQ(read.at("renamed").bytes, "ab");
  EXPECT_EQ(read.size(), plain(open(fixture("offloaded"))).size() + 1);
}

TEST_F(OffloadFolder, WithoutElements_IsAFileThatNumpyCanMap) {
  write("model.safetensors", {{"none", {DType::kF32, {0, 3}, ""}}});
  offload("o", open(at("model.safetensors")));
  EXPECT_EQ(std::filesystem::file_size(at("o/none.dat")), 4u);
  EXPECT_EQ(plain(open(at("o"))).at("none").shape, (std::vector<int64_t>{0, 3}));
}

TEST_F(OffloadFolder, HalfWrittenOrOfSomethingElse_IsRefused) {
  const auto refused = [&](const std::string& name, const std::string& index) {
    put("o/" + name, "abc");
    put("o/index.json", index);
    const std::string text = refusal(at("o"), ErrorCode::kIo);
    std::filesystem::remove_all(at("o"));
    return text;
  };
  EXPECT_EQ(refused("w.dat", R"({"w": {"dtype": "float32", "shape": [2]}})"),
            "o/w.dat: it has 3 bytes, but its tensor in index.json has 8");
  EXPECT_EQ(refused("v.dat", R"({"w": {"dtype": "float32", "shape": [2]}})"),
            "o/w.dat: it is missing, but listed in index.json");
  EXPECT_EQ(refused("w.dat", R"({"w": {"dtype": "float12", "shape": [2]}})"),
            "o/w.dat: its dtype 'float12' is unknown");
  EXPECT_EQ(refused("w.dat", R"({"w": {"dtype": "uint8", "shape": [-3]}})"),
            "o/w.dat: its shape contains an invalid size");
  EXPECT_EQ(refused("w.dat", R"({"w": {"dtype": "uint8", "shape": [9223372036854775807, 3]}})"),
            "o/w.dat: it has 3 bytes, but its tensor in index.json has too many");
  EXPECT_EQ(refused("w.dat", R"({"../w": {"dtype": "uint8", "shape": [3]}})"),
            "o/index.json: tensor name '../w' cannot be a file name");
  EXPECT_EQ(refused("w.dat", R"({"w": {"dtype": "uint8"}})"), "o/w.dat: it has no list 'shape'");
  EXPECT_EQ(refused("w.dat", R"({"w": {"dtype": "uint8", "shape": [3]}, "v": 1})"),
            "o/index.json: 'v': it is not an object");
  write("model.safetensors", {{"w", {DType::kU8, {2}, "ab"}}});
  EXPECT_EQ(
      refused("w.dat", R"({"w": {"dtype": "uint8", "weight_name": "x", "safetensors_file": ")" +
                           at("model.safetensors") + "\"}}"),
      "o/index.json: 'w': model.safetensors has no tensor 'x'");
  EXPECT_EQ(refused("w.dat", R"({"w": {"dtype": "uint8", "shape": [3]}, "w": {"dtype": "a"}})"),
            "o/index.json: 'w' is given twice");
}

TEST_F(OffloadFolder, ThatIsSomethingElse_IsNotWrittenOver) {
  put("o/index.json", R"({"w": "a.bin"})");
  EXPECT_EQ(without_folder(coupler::testing::refusal_of(
                ErrorCode::kInvalidArgument, [&] { OffloadFolderWriter writer(at("o")); })),
            "o/index.json is not the index of an offloaded model, and would be lost");
  EXPECT_TRUE(std::filesystem::exists(at("o/index.json")));
}

}  // namespace
}  // namespace coupler::weights
