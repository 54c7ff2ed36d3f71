// CheckpointCommit: the ranks of a job write a checkpoint together. They communicate only through
// the store, never through a collective, so saving can run in a thread of its own while the job
// trains. One save at a time; used by one thread at a time.
//
// Rank 0 creates the folder and announces it, with the identity of the save and the saved step,
// before any rank writes a byte. Every rank writes its files there and reports them. Rank 0 commits
// them, or discards them if any rank failed; every rank learns the outcome. So a checkpoint holds
// the files of one save of one step, or there is none: a rank at another step makes the save fail,
// reports of another save are rejected, and a late rank finds its folder gone, since the next save
// has its own.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/durable_file.h"
#include "checkpoint/folder_writer.h"
#include "checkpoint/manifest.h"
#include "store/store.h"

namespace coupler::checkpoint {

struct NamedFile {
  std::string name;
  WrittenFile written;
};

class CheckpointCommit {
 public:
  struct Options {
    int rank = 0, world_size = 1;
    std::chrono::nanoseconds timeout{};  // for the slowest rank to write its files
    int64_t total_limit = 0;             // 0: all are kept
  };
  // store: used for nothing else; null if the world size is 1.
  CheckpointCommit(std::shared_ptr<store::Store> store, const Options& options);

  struct Save {
    std::string path;      // of the folder for this rank's files
    std::string identity;  // which its pieces carry (kSaveKey)
  };
  // Creates the folder of a new checkpoint in `folder`. steps: optimizer steps this rank has taken,
  // the same on every rank. Every rank calls begin(), then finish(), which throws on every rank if
  // their steps differ. Throws on every rank if the folder cannot be created, naming what is in the
  // way or the job that writes there.
  Save begin(const std::string& folder, int64_t steps);

  // facts: the manifest without its number and files; the same on every rank. write: writes this
  // rank's files into the folder; any other file found there becomes part of the checkpoint, too.
  // Returns the checkpoint's path once it is durable. Throws on every rank: Error naming the rank
  // that failed and why (a full disk), or the lost rank; older checkpoints are unchanged. May be
  // called on another thread than begin().
  std::string finish(Manifest manifest, const std::function<std::vector<NamedFile>()>& write);

 private:
  std::string key(const char* what) const;
  // The value that `rank` sets under `name`.
  std::string await(const std::string& name, int rank, std::chrono::nanoseconds most);
  std::string make_folder(const std::string& folder);
  void check_save(const Manifest& manifest) const;
  std::string lead(Manifest manifest, const std::string& own);

  std::shared_ptr<store::Store> store_;
  const Options options_;
  int64_t saves_ = 0;
  std::optional<FolderWriter> folder_;  // rank 0's, from its first save on
  std::string folder_name_;             // as it was given
  Save save_;                           // the one in progress
  int64_t own_steps_ = 0;               // given to begin()
  int64_t steps_ = 0;                   // rank 0's
};

}  // namespace coupler::checkpoint
