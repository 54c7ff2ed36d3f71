// Ranks, here threads, that write a checkpoint together.
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <latch>
#include <memory>
#include <thread>

#include "checkpoint/checkpoint_commit.h"
#include "checkpoint/manifest.h"
#include "checkpoint/names.h"
#include "checkpoint/piece_files.h"
#include "checkpoint_files.h"
#include "formats/safetensors_writer.h"
#include "store/store.h"

namespace coupler::checkpoint {
namespace {

using namespace std::chrono_literals;

class JobWriters : public CheckpointFiles {
 protected:
  void make(int world_size, std::chrono::nanoseconds timeout = 20s, int64_t total_limit = 0) {
    const auto store = std::make_shared<store::MemoryStore>();
    for (int rank = 0; rank < world_size; ++rank) {
      writers_.push_back(std::make_unique<CheckpointCommit>(
          store, CheckpointCommit::Options{.rank = rank,
                                           .world_size = world_size,
                                           .timeout = timeout,
                                           .total_limit = total_limit}));
    }
  }

  static NamedFile write_piece(const CheckpointCommit::Save& save, const std::string& name,
                               const std::string& text) {
    safetensors::Writer file(
        save.path + "/" + name,
        {{"text", safetensors::DType::kU8, {static_cast<int64_t>(text.size())}}},
        save.identity.empty() ? safetensors::Metadata()
                              : safetensors::Metadata{{kSaveKey, save.identity}});
    file.write("text", text.data(), text.size());
    return {name, file.finish()};
  }

  // What every rank does in one save. save() returns each rank's result: a path, or what it threw.
  using Write = std::function<std::vector<NamedFile>(int rank, const CheckpointCommit::Save& save)>;
  std::vector<std::string> save(const Write& write, std::vector<ErrorCode>* codes = nullptr,
                                const std::vector<int64_t>& steps = {}) {
    std::vector<std::future<std::string>> ranks;
    if (codes != nullptr) codes->assign(writers_.size(), ErrorCode::kInternal);
    for (size_t rank = 0; rank < writers_.size(); ++rank) {
      ranks.push_back(std::async(std::launch::async, [&, rank]() -> std::string {
        try {
          const int64_t step = steps.empty() ? 7 : steps[rank];
          const CheckpointCommit::Save begun = writers_[rank]->begin(checkpoints(), step);
          return writers_[rank]->finish({.steps = step, .backend = "gloo_cpu"},
                                        [&] { return write(static_cast<int>(rank), begun); });
        } catch (const Error& error) {
          if (codes != nullptr) (*codes)[rank] = error.code();
          return error.what();
        }
      }));
    }
    std::vector<std::string> said;
    for (auto& rank : ranks) said.push_back(rank.get());
    return said;
  }

  // Each rank has its own file.
  static std::string piece_name(int rank) { return fmt::format("part_{}.safetensors", rank); }
  static std::vector<NamedFile> one_each(int rank, const CheckpointCommit::Save& save) {
    return {write_piece(save, piece_name(rank), std::string(100 + rank, 'x'))};
  }

  static Manifest parse_manifest_of(const std::string& path) {
    std::ifstream file(path + "/" + kManifestName);
    return parse(std::string(std::istreambuf_iterator<char>(file), {}), path);
  }

  std::vector<std::unique_ptr<CheckpointCommit>> writers_;
};

TEST_F(JobWriters, EachRanksFiles_AndWhatElseIsInTheFolder_AreCommitted) {
  make(3);
  const auto said = save([](int rank, const CheckpointCommit::Save& save) {
    if (rank == 0) put(save.path + "/notes.txt", "of a hook");
    return one_each(rank, save);
  });
  EXPECT_EQ(said, std::vector<std::string>(3, said[0]));
  EXPECT_TRUE(said[0].ends_with("/checkpoint_0")) << said[0];
  const Manifest manifest = open_checkpoint(said[0]);
  EXPECT_EQ(manifest.world_size, 3);
  EXPECT_EQ(manifest.steps, 7);
  std::set<std::string> names;
  for (const ManifestFile& file : manifest.files) names.insert(file.name);
  EXPECT_EQ(names,
            (std::set<std::string>{"notes.txt", piece_name(0), piece_name(1), piece_name(2)}));
  EXPECT_TRUE(is_save_identity(manifest.save)) << manifest.save;
  for (const ManifestFile& file : manifest.files)
    EXPECT_EQ(file.rank, file.name == "notes.txt" ? -1 : file.name[5] - '0') << file.name;
  EXPECT_TRUE(verify(said[0]).empty());
}

TEST_F(JobWriters, OneRanksFailure_IsEveryRanks_AndTheNextSaveSucceeds) {
  make(3);
  save(one_each);
  std::vector<ErrorCode> codes;
  const auto said = save(
      [](int rank, const CheckpointCommit::Save& save) {
        if (rank == 2) throw Error(ErrorCode::kIo, "cannot write part_2: No space left on device");
        return one_each(rank, save);
      },
      &codes);
  for (const std::string& text : said) {
    EXPECT_NE(text.find("no checkpoint was made in " + checkpoints()), std::string::npos) << text;
    EXPECT_NE(text.find("cannot write part_2: No space left on device"), std::string::npos) << text;
  }
  EXPECT_EQ(codes, std::vector<ErrorCode>(3, ErrorCode::kIo));
  EXPECT_EQ(entries(), "checkpoint_0");
  EXPECT_TRUE(save(one_each)[1].ends_with("/checkpoint_1"));
}

TEST_F(JobWriters, AFolderThatCannotBeMade_IsEveryRanksError) {
  make(2);
  put(checkpoints(), "a file in the way");
  for (const std::string& text : save(one_each)) {
    EXPECT_NE(text.find("no checkpoint was made in " + checkpoints()), std::string::npos) << text;
  }
}

TEST_F(JobWriters, ARankThatDoesNotWrite_IsNamedByAll) {
  make(3, 300ms);
  writers_.pop_back();  // rank 2 does not take part
  std::vector<ErrorCode> codes;
  const auto said = save(one_each, &codes);
  EXPECT_NE(said[0].find("rank 2 made no progress with the checkpoint within 0.3 s"),
            std::string::npos)
      << said[0];
  EXPECT_EQ(codes, std::vector<ErrorCode>(2, ErrorCode::kTimeout));
  EXPECT_EQ(entries(), "");
}

TEST_F(JobWriters, RanksAtDifferentSteps_MakeNoCheckpoint_AndTheErrorNamesBoth) {
  make(3);
  std::vector<ErrorCode> codes;
  const auto ends = save(one_each, &codes, {351, 351, 352});
  for (const std::string& end : ends) {
    EXPECT_NE(end.find("rank 2 is at step 352, but rank 0 saves step 351"), std::string::npos)
        << end;
    EXPECT_NE(end.find("save on every rank after the same optimizer step"), std::string::npos)
        << end;
  }
  EXPECT_EQ(codes, std::vector<ErrorCode>(3, ErrorCode::kUsage));
  EXPECT_EQ(entries(), "");
  EXPECT_TRUE(save(one_each)[0].ends_with("/checkpoint_0"));
}

TEST_F(JobWriters, ARankThatIsLate_FindsItsFolderGone_AndTheNextSaveIsWhole) {
  make(2, 200ms);
  CheckpointCommit::Save late;
  save([&](int rank, const CheckpointCommit::Save& save) {
    if (rank == 1) {
      late = save;
      std::this_thread::sleep_for(600ms);  // rank 0 has given up by then
      EXPECT_NE(error_of([&] { one_each(rank, save); }), "no error");
    }
    return rank == 1 ? std::vector<NamedFile>() : one_each(rank, save);
  });
  EXPECT_EQ(entries(), "");
  const std::string path = save([&](int rank, const CheckpointCommit::Save& save) {
    EXPECT_NE(save.identity, late.identity);
    EXPECT_NE(error_of([&] { one_each(rank, late); }), "no error");
    return one_each(rank, save);
  })[0];
  EXPECT_TRUE(verify(path).empty());
  EXPECT_EQ(open_checkpoint(path).files.size(), 2u);
}

TEST_F(JobWriters, APieceOfAnotherSave_IsNotCommitted) {
  make(2);
  for (const bool has_identity : {true, false}) {
    const auto ends = save([&](int rank, const CheckpointCommit::Save& save) {
      CheckpointCommit::Save other = save;
      if (rank == 1) other.identity = has_identity ? std::string(32, 'a') : "";
      return one_each(rank, other);
    });
    const std::string problem = has_identity
                                    ? "belongs to save " + std::string(32, 'a') + ", not to save "
                                    : "carries no save identity, but rank 1 wrote it for save ";
    for (const std::string& end : ends)
      EXPECT_NE(end.find("part_1.safetensors " + problem), std::string::npos) << end;
    EXPECT_EQ(entries(), "");
  }
}

TEST_F(JobWriters, APieceExchangedAfterwards_IsFoundByEveryReader) {
  make(2);
  const std::string first = save(one_each)[0];
  const std::string second = save(one_each)[0];
  // Same size and contents, but from the previous save.
  std::filesystem::copy_file(first + "/" + piece_name(1), second + "/" + piece_name(1),
                             std::filesystem::copy_options::overwrite_existing);
  const std::string rule =
      fmt::format("belongs to save {}, not to save {} for which rank 1 wrote it",
                  open_checkpoint(first).save, parse_manifest_of(second).save);
  EXPECT_NE(error_of([&] { open_checkpoint(second); }).find(rule), std::string::npos);
  const auto differences = verify(second);
  ASSERT_EQ(differences.size(), 1u);
  EXPECT_EQ(differences[0].file, piece_name(1));
  EXPECT_EQ(differences[0].reason, rule);
  const Newest found = newest(checkpoints());
  ASSERT_TRUE(found.entry);
  EXPECT_EQ(found.entry->number, 0);
  ASSERT_EQ(found.skipped.size(), 1u);
  EXPECT_NE(found.skipped[0].reason.find(rule), std::string::npos) << found.skipped[0].reason;
  EXPECT_FALSE(list(checkpoints())[1].manifest);
  const Manifest manifest = parse_manifest_of(second);
  EXPECT_NE(error_of([&] {
              PieceFiles(second, manifest, {piece_name(0), piece_name(1)});
            }).find(rule),
            std::string::npos);
}

// A failing disk is not a programming error.
TEST_F(JobWriters, AFolderThatCannotBeRead_IsAnErrorOfTheDisk) {
  make(2);
  std::vector<ErrorCode> codes;
  std::latch written(2);
  const auto ends = save(
      [&](int rank, const CheckpointCommit::Save& save) {
        auto files = one_each(rank, save);
        written.arrive_and_wait();
        if (rank == 0) std::filesystem::rename(save.path, save.path + ".away");
        return files;
      },
      &codes);
  EXPECT_EQ(codes, std::vector<ErrorCode>(2, ErrorCode::kIo));
  EXPECT_NE(ends[1].find("cannot read "), std::string::npos) << ends[1];
}

// For example, of an earlier job with the same store.
TEST_F(JobWriters, AReportOfAnotherSave_IsRefused) {
  const auto store = std::make_shared<store::MemoryStore>();
  CheckpointCommit writer(store, {.rank = 0, .world_size = 2, .timeout = 20s});
  const CheckpointCommit::Save begun = writer.begin(checkpoints(), 7);
  store->set(
      "1/files/1",
      nlohmann::json{{"save", std::string(32, 'a')}, {"files", nlohmann::json::array()}}.dump());
  const std::string text =
      error_of([&] { writer.finish({.steps = 7}, [&] { return one_each(0, begun); }); },
               ErrorCode::kInternal);
  EXPECT_NE(text.find("rank 1 reported files of save " + std::string(32, 'a') + ", not of save " +
                      begun.identity),
            std::string::npos)
      << text;
  EXPECT_EQ(entries(), "");
}

// A file that a hook adds to the folder is not a piece, whatever its name, and no reader takes it
// for one.
TEST_F(JobWriters, AFileThatNoRankWrote_IsNoPiece) {
  make(2);
  const std::string path = save([](int rank, const CheckpointCommit::Save& save) {
    if (rank == 0) write_piece({save.path, ""}, "part-average.safetensors", "of a hook");
    return std::vector<NamedFile>{
        write_piece(save, fmt::format("part-0000{}-of-00002.safetensors", rank + 1), "abc")};
  })[0];
  EXPECT_TRUE(verify(path).empty());
  const Manifest manifest = open_checkpoint(path);
  EXPECT_EQ(manifest.files.size(), 3u);
  EXPECT_EQ(files_of(manifest, "part"),
            (std::vector<std::string>{"part-00001-of-00002.safetensors",
                                      "part-00002-of-00002.safetensors"}));
  EXPECT_NE(error_of([&] {
              PieceFiles(path, manifest, {"part-average.safetensors"});
            }).find("no rank wrote it as a piece of the save"),
            std::string::npos);
}

// From before saves had identities.
TEST_F(JobWriters, ACheckpointWithoutAnIdentity_IsReadAsItWas) {
  make(1);
  const std::string path = save(one_each)[0];
  Manifest manifest = parse_manifest_of(path);
  const std::string name = manifest.files.at(0).name;
  std::filesystem::remove(path + "/" + name);
  manifest.files[0].rank = -1;
  manifest.save = "";
  const WrittenFile written = write_piece({path, ""}, name, "as it was").written;
  manifest.files[0].bytes = written.bytes;
  manifest.files[0].sha256 = written.sha256;
  manifest.state["sums"][name] = encode_sums(written.sums);
  put(path + "/" + kManifestName, format(manifest));
  EXPECT_TRUE(list(checkpoints())[0].manifest) << list(checkpoints())[0].reason;
  EXPECT_TRUE(verify(path).empty());
  const Manifest read = open_checkpoint(path);
  EXPECT_EQ(read.save, "");
  EXPECT_EQ(files_of(read, "part_0"), std::vector<std::string>{name});
  PieceFiles files(path, read, {name});
  std::string text(9, ' ');
  files.read("text", 0, 9, text.data());
  EXPECT_EQ(text, "as it was");
  // It is pruned like any other.
  CheckpointCommit next(nullptr, {.rank = 0, .world_size = 1, .timeout = 20s, .total_limit = 1});
  writers_.clear();
  const CheckpointCommit::Save begun = next.begin(checkpoints(), 8);
  next.finish({.steps = 8}, [&] { return one_each(0, begun); });
  EXPECT_EQ(entries(), "checkpoint_1");
}

TEST_F(JobWriters, OlderOnes_AreRemovedBehindTheLimit) {
  make(2, 20s, 2);
  for (int i = 0; i < 4; ++i) save(one_each);
  EXPECT_EQ(entries(), "checkpoint_2 checkpoint_3");
}

}  // namespace
}  // namespace coupler::checkpoint
