// Pieces of tensors: divided among ranks, written by each, read back by any number of ranks.
#include <ATen/Functions.h>

#include <algorithm>
#include <random>

#include "checkpoint/manifest.h"
#include "checkpoint/names.h"
#include "checkpoint/restore.h"
#include "checkpoint/snapshot.h"
#include "core/checkpoint/checkpoint_files.h"

namespace coupler::checkpoint {
namespace {

class Pieces : public CheckpointFiles {
 protected:
  // A tensor of random shape and dtype.
  at::Tensor some_tensor() {
    static constexpr at::ScalarType kTypes[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kLong,
                                                at::kBool};
    std::vector<int64_t> shape;
    for (int i = number(0, 3); i > 0; --i) shape.push_back(number(1, 7));
    return at::randint(0, 2, shape, at::kLong).to(kTypes[number(0, 4)]);
  }
  int number(int from, int to) { return std::uniform_int_distribution<int>(from, to)(random_); }

  // Each tensor is divided over groups of `world / copies` ranks; every group holds a whole copy.
  std::vector<StatePiece> pieces_of(const std::map<std::string, at::Tensor>& tensors,
                                    int world_size, int copies, int rank) const {
    const int group = world_size / copies, place = rank % group;
    std::vector<StatePiece> pieces;
    for (const auto& [name, tensor] : tensors) {
      const int64_t numel = tensor.numel(), part = (numel + group - 1) / group;
      StatePiece piece{.name = name,
                       .shape = tensor.sizes().vec(),
                       .begin = std::min(numel, place * part),
                       .end = std::min(numel, (place + 1) * part),
                       .copies = copies,
                       .copy = rank / group};
      if (piece.numel() == 0) continue;
      piece.values = tensor.flatten().slice(0, piece.begin, piece.end).clone();
      pieces.push_back(std::move(piece));
    }
    return pieces;
  }

  // Writes as a job of that many ranks does.
  std::vector<std::string> write(const std::map<std::string, at::Tensor>& tensors, int world_size,
                                 int copies) {
    std::vector<std::vector<StatePiece>> files;
    for (int rank = 0; rank < world_size; ++rank)
      files.push_back(deduplicated(pieces_of(tensors, world_size, copies, rank)));
    return write_files(files);
  }

  std::vector<std::string> write_files(const std::vector<std::vector<StatePiece>>& files) {
    manifest_ = {};
    manifest_.state["sums"] = nlohmann::json::object();
    std::vector<std::string> names;
    for (const std::vector<StatePiece>& own : files) {
      names.push_back("part_" + std::to_string(names.size()));
      std::filesystem::remove(at(names.back()));
      const WrittenFile written = write_pieces(at(names.back()), own, {{"format", "pt"}});
      manifest_.files.push_back({names.back(), written.bytes, written.sha256});
      manifest_.state["sums"][names.back()] = encode_sums(written.sums);
    }
    return names;
  }

  std::mt19937 random_{17};
  Manifest manifest_;
};

TEST_F(Pieces, WrittenByAnyNumberOfRanks_AreReadByAnyOther) {
  for (int round = 0; round < 150; ++round) {
    std::map<std::string, at::Tensor> tensors;
    for (int i = number(1, 6); i > 0; --i) tensors["t" + std::to_string(i)] = some_tensor();
    const int copies = number(1, 3), world_size = copies * number(1, 4);
    PieceReader reader(folder_, manifest_, write(tensors, world_size, copies));
    const int readers = number(1, 5);
    for (int rank = 0; rank < readers; ++rank) {
      for (const StatePiece& wanted : pieces_of(tensors, readers, 1, rank)) {
        const at::Tensor values = at::empty_like(wanted.values);
        reader.read(wanted.name, values, wanted.begin);
        ASSERT_TRUE(at::equal(values, wanted.values))
            << "round " << round << ", " << wanted.name << " [" << wanted.begin << ", "
            << wanted.end << ") of " << world_size << " ranks read by " << readers;
      }
    }
  }
}

TEST_F(Pieces, OfEqualCopies_EachRankSavesAboutAsMuch_AndEveryPieceOnce) {
  std::map<std::string, at::Tensor> tensors;
  for (int i = 0; i < 40; ++i)
    tensors["t" + std::to_string(i)] = at::zeros({number(1, 1000)}, at::kFloat);
  std::map<std::string, int> saved;
  std::vector<uint64_t> bytes;
  for (int rank = 0; rank < 4; ++rank) {
    bytes.push_back(0);
    for (const StatePiece& piece : deduplicated(pieces_of(tensors, 4, 4, rank))) {
      ++saved[piece.name];
      bytes.back() += piece.values.nbytes();
    }
  }
  EXPECT_EQ(saved.size(), tensors.size());
  for (const auto& [name, times] : saved) EXPECT_EQ(times, 1) << name;
  const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
  EXPECT_LT(*most - *least, 4000u);  // the size of one tensor
}

// As weights that stages of a pipeline share: other ranks hold the one than the other.
TEST_F(Pieces, OfDifferentRanks_EveryPieceIsSavedOnce) {
  const std::map<std::string, std::vector<int>> holders{
      {"large", {0, 1}}, {"small", {1, 2}}, {"middle", {0, 2}}};
  const std::map<std::string, int64_t> sizes{{"large", 100}, {"small", 10}, {"middle", 50}};
  std::map<std::string, int> saved;
  for (int rank = 0; rank < 3; ++rank) {
    std::vector<StatePiece> pieces;
    for (const auto& [name, ranks] : holders) {
      const auto at = std::find(ranks.begin(), ranks.end(), rank);
      if (at == ranks.end()) continue;
      pieces.push_back(StatePiece::whole_of(name, at::zeros({sizes.at(name)})));
      pieces.back().copies = 2;
      pieces.back().copy = static_cast<int>(at - ranks.begin());
      pieces.back().holders = ranks;
    }
    for (const StatePiece& piece : deduplicated(pieces)) ++saved[piece.name];
  }
  EXPECT_EQ(saved, (std::map<std::string, int>{{"large", 1}, {"small", 1}, {"middle", 1}}));
}

TEST_F(Pieces, APartThatIsInNoFile_IsNamed) {
  const std::map<std::string, at::Tensor> tensors{{"weight", at::arange(10)}};
  auto names = write(tensors, 2, 1);
  names.pop_back();
  PieceReader reader(folder_, manifest_, names);
  const std::string said = error_of([&] { reader.read("weight", at::empty({10}, at::kLong)); });
  EXPECT_NE(said.find("weight: none of the checkpoint's files contains elements 5 to 10"),
            std::string::npos)
      << said;
}

TEST_F(Pieces, AnotherDtype_IsRefused) {
  const std::map<std::string, at::Tensor> tensors{{"weight", at::arange(10)}};
  PieceReader reader(folder_, manifest_, write(tensors, 1, 1));
  const at::Tensor floats = at::empty({10}, at::kFloat);
  const std::string said =
      error_of([&] { reader.read("weight", floats); }, ErrorCode::kInvalidArgument);
  EXPECT_NE(said.find("tensor 'weight' is Long, but the program's is Float"), std::string::npos)
      << said;
}

TEST_F(Pieces, NamesThatLookLikeParts_AreNames) {
  for (const std::string name : {"a[1:]", "a[:2]", "a[2:1]", "a[-1:3]", "a[1:2", "[x]", "a[1:2]b"})
    EXPECT_EQ(read_entry_name(name).name, name);
  EXPECT_EQ(read_entry_name("a[0][3:9]").name, "a[0]");
  EXPECT_EQ(read_entry_name("a[0][3:9]").begin, 3);
  for (const std::string name :
       {"a[0:2|4*2]", "a[0:2|4*2+2]", "a[0:2|0*2+1]", "a[0:2|4*1+0]", "a[0:2|4*2+-1]",
        "a[0:2|4*2+1+1]", "a[0:2|9223372036854775807*2+1]", "a[0:2||4*2+1]"})
    EXPECT_EQ(read_entry_name(name).name, name);
  const EntryRange range = read_entry_name("a[3:9|4*3+2]");
  EXPECT_EQ(range.name, "a");
  EXPECT_EQ(range.end, 9);
  EXPECT_EQ(range.division, (sharding::Division{4, 3, 2}));
}

// Rows of a matrix that a tensor group divides by columns, further divided over ranks that shard.
TEST_F(Pieces, OfDividedMatrices_AreReadUnderAnyOtherDivision) {
  const at::Tensor matrix = at::arange(48).view({4, 12});
  const auto part_of = [&](int64_t blocks, int ranks, int rank) {
    return matrix.view({4 * blocks, ranks, -1}).select(1, rank).reshape({-1});
  };
  for (const auto& [blocks, ranks] : {std::pair(int64_t{1}, 2), std::pair(int64_t{3}, 2),
                                      std::pair(int64_t{1}, 3), std::pair(int64_t{2}, 3)}) {
    std::vector<std::vector<StatePiece>> files;
    for (int rank = 0; rank < ranks; ++rank) {
      const at::Tensor own = part_of(blocks, ranks, rank);
      const auto division = sharding::Division::along(12, 1, blocks, ranks, rank);
      for (const auto& [begin, end] :
           {std::pair(int64_t{0}, int64_t{5}), std::pair(int64_t{5}, own.numel())}) {
        files.push_back({{.name = "weight",
                          .shape = {4, 12},
                          .begin = begin,
                          .end = end,
                          .values = own.slice(0, begin, end).clone(),
                          .division = division}});
      }
    }
    PieceReader reader(folder_, manifest_, write_files(files));
    const at::Tensor read = at::empty({4, 12}, at::kLong);
    reader.read("weight", read);
    EXPECT_TRUE(read.equal(matrix));
    for (const int others : {1, 2, 3, 4}) {
      for (int rank = 0; rank < others; ++rank) {
        const at::Tensor expected = part_of(1, others, rank);
        const at::Tensor own = at::empty({expected.numel() - 1}, at::kLong);
        reader.read("weight", own, 1, sharding::Division::along(12, 1, 1, others, rank));
        EXPECT_TRUE(own.equal(expected.slice(0, 1)));
      }
    }
  }
}

}  // namespace
}  // namespace coupler::checkpoint
