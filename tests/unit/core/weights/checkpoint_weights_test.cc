#include <algorithm>
#include <nlohmann/json.hpp>

#include "checkpoint/folder_writer.h"
#include "checkpoint/manifest.h"
#include "checkpoint/names.h"
#include "weight_files.h"
#include "weights/open_weights.h"
#include "weights/write_weights.h"

namespace coupler::weights {
namespace {

using coupler::testing::file_text;
using coupler::testing::plain;
using coupler::testing::PlainTensor;
using coupler::testing::PlainTensors;

struct Part {
  std::string name;
  PlainTensor tensor;
};

class CheckpointWeights : public coupler::testing::WeightFilesTest {
 protected:
  // Divides some tensors between the files as ranks do, at any element.
  std::vector<std::vector<Part>> divide(const PlainTensors& tensors, size_t world_size) {
    std::vector<std::vector<Part>> files(world_size);
    for (const auto& [name, tensor] : tensors) {
      int64_t numel = 1;
      for (const int64_t size : tensor.shape) numel *= size;
      std::vector<int64_t> cuts = {0, numel};
      for (int64_t count = random(0, 4); count > 0; --count) cuts.push_back(random(0, numel));
      std::sort(cuts.begin(), cuts.end());
      cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
      const auto any = [&]() -> std::vector<Part>& {
        return files[static_cast<size_t>(random(0, static_cast<int64_t>(world_size) - 1))];
      };
      // As tensor groups divide it: runs of `run` elements, in turns.
      const int64_t ranks = random(2, 3), run = numel > 0 ? random(1, 3) : 1;
      if (numel % (ranks * run) == 0 && numel / ranks > run && random(0, 2) == 0) {
        for (int rank = 0; rank < ranks; ++rank) {
          const sharding::Division division{run, static_cast<int>(ranks), rank};
          const int64_t own = numel / ranks, cut = random(0, own);
          for (const auto& [begin, end] : {std::pair(int64_t{0}, cut), std::pair(cut, own)}) {
            if (begin < end) any().push_back(divided_part(name, tensor, begin, end, division));
          }
        }
        continue;
      }
      if (cuts.size() <= 2) {
        any().push_back({name, tensor});
        // Several ranks may write a tensor without elements.
        if (numel == 0) {
          for (auto& file : files) {
            if (std::none_of(file.begin(), file.end(),
                             [&, name = name](const Part& p) { return p.name == name; }))
              file.push_back({name, tensor});
          }
        }
        continue;
      }
      const uint64_t bytes = safetensors::bits(tensor.dtype) / 8;
      for (size_t i = 0; i + 1 < cuts.size(); ++i) {
        const int64_t count = cuts[i + 1] - cuts[i];
        any().push_back({checkpoint::part_name(name, cuts[i], cuts[i + 1]),
                         {tensor.dtype,
                          {count},
                          tensor.bytes.substr(static_cast<size_t>(cuts[i]) * bytes,
                                              static_cast<size_t>(count) * bytes)}});
      }
    }
    return files;
  }

  static Part divided_part(const std::string& name, const PlainTensor& tensor, int64_t begin,
                           int64_t end, const sharding::Division& division) {
    const size_t bytes = safetensors::bits(tensor.dtype) / 8;
    std::string values;
    for (int64_t at = begin; at < end; ++at)
      values += tensor.bytes.substr(static_cast<size_t>(division.in_tensor(at)) * bytes, bytes);
    return {checkpoint::part_name(name, begin, end, division),
            {tensor.dtype, {end - begin}, values}};
  }

  static nlohmann::json describe(const PlainTensors& tensors) {
    nlohmann::json list = nlohmann::json::object();
    for (const auto& [name, tensor] : tensors)
      list[name] = {std::string(to_string(tensor.dtype)), tensor.shape};
    return {{"type", "Net"}, {"tensors", list}, {"aliases", nlohmann::json::object()}};
  }

  // Saves the given files of the model as a job does.
  std::string save(const std::vector<std::vector<Part>>& files, const nlohmann::json& models,
                   const std::string& base = "model") {
    checkpoint::FolderWriter writer(at("checkpoints"));
    checkpoint::Manifest manifest;
    manifest.number = ++number_;
    manifest.world_size = static_cast<int>(files.size());
    manifest.saved_at = checkpoint::now_utc();
    manifest.state = {{"models", models}, {"sums", nlohmann::json::object()}};
    const std::string folder = writer.begin(manifest.number);
    manifest.save = writer.save();
    for (size_t i = 0; i < files.size(); ++i) {
      if (files[i].empty()) continue;
      const std::string name = files.size() == 1 ? base + ".safetensors"
                                                 : fmt::format("{}-{:05}-of-{:05}.safetensors",
                                                               base, i + 1, files.size());
      std::vector<safetensors::TensorEntry> entries;
      std::map<std::string, const std::string*> bytes;
      for (const Part& part : files[i]) {
        entries.push_back({part.name, part.tensor.dtype, part.tensor.shape});
        bytes[part.name] = &part.tensor.bytes;
      }
      safetensors::Writer file(folder + "/" + name, entries,
                               {{checkpoint::kSaveKey, writer.save()}});
      for (const auto& info : file.tensors())
        file.write(info.name, bytes.at(info.name)->data(), bytes.at(info.name)->size());
      const WrittenFile written = file.finish();
      manifest.files.push_back({name, written.bytes, written.sha256, static_cast<int>(i)});
      manifest.state["sums"][name] = checkpoint::encode_sums(written.sums);
    }
    return writer.commit(manifest);
  }

  // Two files, of which the first has the first 4 elements of "w".
  std::string with_parts(const std::vector<Part>& first, const std::vector<Part>& second) {
    return save({first, second},
                nlohmann::json::array({describe({{"w", {safetensors::DType::kU8, {2, 5}, ""}}})}));
  }
  static Part part(const std::string& name, const std::string& bytes,
                   safetensors::DType dtype = safetensors::DType::kU8) {
    return {name, {dtype, {static_cast<int64_t>(bytes.size())}, bytes}};
  }
  std::string refused(const std::string& folder) {
    std::string text = refusal(folder, ErrorCode::kIo);
    const std::string own = "checkpoints/checkpoint_" + std::to_string(number_);
    for (size_t found = text.find(own); found != std::string::npos; found = text.find(own))
      text.replace(found, own.size(), "C");
    return text;
  }

  int64_t number_ = 0;
};

TEST_F(CheckpointWeights, DividedInAnyWay_AreJoined) {
  for (int round = 0; round < 40; ++round) {
    const PlainTensors tensors = random_tensors(static_cast<size_t>(random(1, 20)), round == 0);
    nlohmann::json model = describe(tensors);
    model["aliases"]["tied"] = tensors.begin()->first;
    const auto world_size = static_cast<size_t>(random(1, 6));
    const std::string folder = save(divide(tensors, world_size), nlohmann::json::array({model}));
    const WeightSource source = open(folder);
    EXPECT_TRUE(plain(source) == tensors) << round;
    EXPECT_EQ(source.aliases.at("tied"), tensors.begin()->first);
    // As one file that was never divided.
    const std::string out = at(fmt::format("{}.safetensors", round));
    write_weights(source, out, {});
    write("right.safetensors", tensors, {{"format", "pt"}, {"tied", tensors.begin()->first}});
    EXPECT_TRUE(file_text(out) == file_text(at("right.safetensors"))) << round;
    std::filesystem::remove(at("right.safetensors"));
  }
}

TEST_F(CheckpointWeights, OfMoreRanksThanFilesAreKeptOpen_AreJoined) {
  PlainTensors tensors;
  std::vector<std::vector<Part>> files(300);
  for (const char* name : {"a", "b"}) {
    std::string bytes;
    for (int i = 0; i < 600; ++i) bytes += static_cast<char>(random(0, 255));
    tensors[name] = {safetensors::DType::kU8, {600}, bytes};
    for (size_t i = 0; i < files.size(); ++i)
      files[i].push_back(part(
          checkpoint::part_name(name, static_cast<int64_t>(2 * i), static_cast<int64_t>(2 * i + 2)),
          bytes.substr(2 * i, 2)));
  }
  EXPECT_EQ(plain(open(save(files, nlohmann::json::array({describe(tensors)})))), tensors);
}

TEST_F(CheckpointWeights, OfTheSecondModel_AreItsOwn) {
  const PlainTensors tensors = random_tensors(4);
  const nlohmann::json models = {describe({}), describe(tensors)};
  const std::string folder = save(divide(tensors, 2), models, "model_1");
  EXPECT_EQ(plain(open(folder, {.model = 1, .key = {}})), tensors);
  EXPECT_EQ(refusal(folder, ErrorCode::kInvalidArgument, {.model = 2, .key = {}}),
            "checkpoints/checkpoint_1: model 2 does not exist: it has 2");
  EXPECT_EQ(refusal(folder, ErrorCode::kInvalidArgument, {.model = 1, .key = "module"}),
            "checkpoints/checkpoint_1 has no dictionaries for --key to choose from");
}

TEST_F(CheckpointWeights, WithGapsAndOverlaps_AreRefused_NamingTheElements) {
  EXPECT_EQ(refused(with_parts({part("w[0:4]", "abcd")}, {part("w[5:10]", "fghij")})),
            "C: tensor 'w': elements 4 to 5 are missing from its files");
  EXPECT_EQ(refused(with_parts({part("w[0:4]", "abcd")}, {part("w[4:9]", "efghi")})),
            "C: tensor 'w': elements 9 to 10 are missing from its files");
  EXPECT_EQ(refused(with_parts({part("w[1:4]", "bcd")}, {part("w[4:10]", "efghij")})),
            "C: tensor 'w': elements 0 to 1 are missing from its files");
  EXPECT_EQ(refused(with_parts({part("v", "abcd")}, {})),
            "C: tensor 'w': elements 0 to 10 are missing from its files");
  EXPECT_EQ(refused(with_parts({part("w[0:4]", "abcd")}, {part("w[3:10]", "defghij")})),
            "C/model-00002-of-00002.safetensors: it has elements 3 to 10 of tensor 'w', but "
            "C/model-00001-of-00002.safetensors has 0 to 4");
  EXPECT_EQ(refused(with_parts({part("w", "abcdefghij")}, {part("w", "abcdefghij")})),
            "C/model-00002-of-00002.safetensors: it has elements 0 to 10 of tensor 'w', but "
            "C/model-00001-of-00002.safetensors has 0 to 10");
  EXPECT_EQ(refused(with_parts({part("w[0:4]", "abcd")}, {part("w[4:11]", "efghijk")})),
            "C/model-00002-of-00002.safetensors: it has elements 4 to 11 of tensor 'w', which has "
            "10");
  EXPECT_EQ(refused(with_parts({part("w[0:4]", "abcd")}, {part("w[4:11]", "efghij")})),
            "C/model-00002-of-00002.safetensors: entry 'w[4:11]' has 6 elements");
}

TEST_F(CheckpointWeights, DividedWithGaps_AreRefused_NamingPartAndElements) {
  EXPECT_EQ(refused(with_parts({part("w[0:5|1*2+0]", "acegi")}, {part("w[0:4|1*2+1]", "bdfh")})),
            "C: tensor 'w': elements 4 to 5 of part 1 of 2 are missing from its files");
  EXPECT_EQ(refused(with_parts({part("w[0:5|1*2+0]", "acegi")}, {})),
            "C: tensor 'w': elements 0 to 5 of part 1 of 2 are missing from its files");
  EXPECT_EQ(refused(with_parts({part("w[0:5|1*2+0]", "acegi")}, {part("w[0:5|5*2+1]", "fghij")})),
            "C/model-00002-of-00002.safetensors: it divides tensor 'w' in another way than "
            "C/model-00001-of-00002.safetensors");
  EXPECT_EQ(refused(with_parts({part("w[0:6|3*2+0]", "abcghi")}, {part("w[0:6|3*2+1]", "defjkl")})),
            "C/model-00001-of-00002.safetensors: it has runs of 3 elements of tensor 'w', which "
            "has 10");
}

TEST_F(CheckpointWeights, ThatDoNotFitTheManifest_AreRefused) {
  EXPECT_EQ(refused(with_parts({part("w", "abcdefghij")}, {part("v", "a")})),
            "C/model-00002-of-00002.safetensors: it has tensor 'v', which the manifest does not "
            "describe");
  EXPECT_EQ(refused(with_parts({part("w[0:4]", "abcd")},
                               {part("w[4:10]", "efghij", safetensors::DType::kI8)})),
            "C/model-00002-of-00002.safetensors: entry 'w[4:10]' is I8, but "
            "C/model-00001-of-00002.safetensors has a part of the tensor that is U8");
  EXPECT_EQ(refused(save({{part("w", "a")}}, nlohmann::json::array())),
            "C: its manifest describes no model");
  EXPECT_TRUE(refused(save({{part("w", "a")}}, nlohmann::json::array({{{"tensors", {{"w", 5}}}}})))
                  .starts_with("C: its manifest's entry for model 0 cannot be read: "));
}

TEST_F(CheckpointWeights, WithDamagedBytes_AreRefused_NamingThePlace) {
  const std::string folder = with_parts({part("w[0:4]", "abcd")}, {part("w[4:10]", "efghij")});
  const std::string file = folder + "/model-00002-of-00002.safetensors";
  std::string bytes = file_text(file);
  bytes.back() = 'X';
  std::ofstream(file, std::ios::binary) << bytes;
  EXPECT_NE(
      refused(folder).find("C/model-00002-of-00002.safetensors is damaged between bytes 0 and "),
      std::string::npos);
  std::filesystem::remove(file);
  EXPECT_EQ(refused(folder), "C/model-00002-of-00002.safetensors is missing");
}

}  // namespace
}  // namespace coupler::weights
