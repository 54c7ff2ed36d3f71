// Ranks, here threads, that write a checkpoint together.
#include "checkpoint/job_writer.h"

#include <future>
#include <memory>

#include "checkpoint_files.h"
#include "rendezvous/memory_store.h"

namespace coupler::checkpoint {
namespace {

using namespace std::chrono_literals;

class JobWriters : public CheckpointFiles {
 protected:
  void make(int world, std::chrono::nanoseconds timeout = 20s, int64_t total_limit = 0) {
    const auto store = std::make_shared<MemoryStore>();
    for (int rank = 0; rank < world; ++rank) {
      writers_.push_back(std::make_unique<JobWriter>(
          store,
          JobWriter::Options{
              .rank = rank, .world = world, .timeout = timeout, .total_limit = total_limit}));
    }
  }

  static NamedFile write_named(const std::string& folder, const std::string& name,
                               const std::string& text) {
    DurableFile file(folder + "/" + name);
    file.write(text.data(), text.size());
    return {name, file.finish()};
  }

  // What every rank does in one save; returns what each came to: a path, or what it threw.
  using Write = std::function<std::vector<NamedFile>(int rank, const std::string& path)>;
  std::vector<std::string> save(const Write& write, std::vector<ErrorCode>* codes = nullptr) {
    std::vector<std::future<std::string>> ranks;
    if (codes != nullptr) codes->assign(writers_.size(), ErrorCode::kInternal);
    for (size_t rank = 0; rank < writers_.size(); ++rank) {
      ranks.push_back(std::async(std::launch::async, [&, rank]() -> std::string {
        try {
          const std::string path = writers_[rank]->begin(checkpoints());
          return writers_[rank]->finish({.steps = 7, .backend = "gloo_cpu"},
                                        [&] { return write(static_cast<int>(rank), path); });
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

  // Its own file on each.
  static std::vector<NamedFile> one_each(int rank, const std::string& path) {
    return {write_named(path, "part_" + std::to_string(rank), std::string(100 + rank, 'x'))};
  }

  std::vector<std::unique_ptr<JobWriter>> writers_;
};

TEST_F(JobWriters, EachRanksFiles_AndWhatElseIsInTheFolder_AreCommitted) {
  make(3);
  const auto said = save([](int rank, const std::string& path) {
    if (rank == 0) put(path + "/notes.txt", "of a hook");
    return one_each(rank, path);
  });
  EXPECT_EQ(said, std::vector<std::string>(3, said[0]));
  EXPECT_TRUE(said[0].ends_with("/checkpoint_0")) << said[0];
  const Manifest manifest = open_checkpoint(said[0]);
  EXPECT_EQ(manifest.world, 3);
  EXPECT_EQ(manifest.steps, 7);
  std::set<std::string> names;
  for (const ManifestFile& file : manifest.files) names.insert(file.name);
  EXPECT_EQ(names, (std::set<std::string>{"notes.txt", "part_0", "part_1", "part_2"}));
  EXPECT_TRUE(verify(said[0]).empty());
}

TEST_F(JobWriters, OneRanksFailure_IsEveryRanks_AndTheNextSaveSucceeds) {
  make(3);
  save(one_each);
  std::vector<ErrorCode> codes;
  const auto said = save(
      [](int rank, const std::string& path) {
        if (rank == 2) throw Error(ErrorCode::kIo, "cannot write part_2: No space left on device");
        return one_each(rank, path);
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
  writers_.pop_back();  // it does not come
  std::vector<ErrorCode> codes;
  const auto said = save(one_each, &codes);
  EXPECT_NE(said[0].find("rank 2 did not go on with the checkpoint in 0.3 s"), std::string::npos)
      << said[0];
  EXPECT_EQ(codes, std::vector<ErrorCode>(2, ErrorCode::kTimeout));
  EXPECT_EQ(entries(), "");
}

TEST_F(JobWriters, OlderOnes_AreRemovedBehindTheLimit) {
  make(2, 20s, 2);
  for (int i = 0; i < 4; ++i) save(one_each);
  EXPECT_EQ(entries(), "checkpoint_2 checkpoint_3");
}

}  // namespace
}  // namespace coupler::checkpoint
