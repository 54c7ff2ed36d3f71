// JobWriter: how the ranks of a job write a checkpoint together. They meet in the store only, never
// in a collective, so that it may go on in a thread of its own while the job trains. One save at a
// time; used by one thread at a time.
//
// Rank 0 makes the folder and announces it with the identity of the save and the step that is
// saved, before any rank writes a byte. Every rank writes its files into it and reports them, rank
// 0 commits them or, if any rank failed, throws them away; every rank learns how it ended. So a
// checkpoint holds the files of one save of one step, or there is none: a rank that is at another
// step makes the save fail, reports of another save are refused, and a rank that is late finds its
// folder gone, since the next save has a folder of its own.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/folder_writer.h"
#include "checkpoint/manifest.h"
#include "io/durable_file.h"
#include "rendezvous/store.h"

namespace coupler::checkpoint {

struct NamedFile {
  std::string name;
  WrittenFile written;
};

class JobWriter {
 public:
  struct Options {
    int rank = 0, world = 1;
    std::chrono::nanoseconds timeout{};  // for the slowest rank to write its files
    int64_t total_limit = 0;             // 0: all are kept
  };
  // store: of this purpose alone; null where world is 1.
  JobWriter(std::shared_ptr<Store> store, const Options& options);

  struct Save {
    std::string path;      // of the folder that this rank's files go to
    std::string identity;  // which its pieces carry (kSaveKey)
  };
  // Makes the folder of a new checkpoint in `folder`. steps: optimizer steps that this rank has
  // taken, which has to be the same on every rank. Every rank calls it, then finish(), which throws
  // on every rank if their steps differ. Throws, on every rank, if the folder cannot be made:
  // naming what is in the way, or the job that writes there.
  Save begin(const std::string& folder, int64_t steps);

  // facts: of the checkpoint, but for its number and its files; the same on every rank. write:
  // writes this rank's files into the folder; what else is found there becomes part of the
  // checkpoint, too. Returns the checkpoint's path once it cannot be lost any more. Throws, on
  // every rank: Error naming the rank that failed and why (a full disk), or, where a rank is lost,
  // who; older checkpoints are as they were. May be called on another thread than begin().
  std::string finish(Manifest facts, const std::function<std::vector<NamedFile>()>& write);

 private:
  std::string key(const char* what) const;
  // What that rank sets under `name`.
  std::string await(const std::string& name, int rank, std::chrono::nanoseconds most);
  std::string make_folder(const std::string& folder);
  void check_save(const Manifest& facts) const;
  std::string lead(Manifest facts, const std::string& own);

  std::shared_ptr<Store> store_;
  const Options options_;
  int64_t saves_ = 0;
  std::optional<FolderWriter> folder_;  // rank 0's, from its first save on
  std::string folder_name_;             // as it was given
  Save save_;                           // that is under way
  int64_t own_steps_ = 0;               // of begin(); and those of rank 0
  int64_t steps_ = 0;
};

}  // namespace coupler::checkpoint
