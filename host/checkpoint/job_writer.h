// JobWriter: how the ranks of a job write a checkpoint together. They meet in the store only, never
// in a collective, so that it may go on in a thread of its own while the job trains. One save at a
// time; used by one thread at a time.
//
// Rank 0 makes the folder, every rank writes its files into it and says what they are, rank 0
// commits it or, where any of them failed, throws it away; every rank learns how it ended.
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

  // Makes the folder of a new checkpoint in `folder` and returns its path. Every rank calls it,
  // then finish(). Throws, on every rank, where it cannot be made: naming what is in the way, or
  // the job that writes there.
  std::string begin(const std::string& folder);

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
  std::string lead(Manifest facts, const std::string& own);

  std::shared_ptr<Store> store_;
  const Options options_;
  int64_t saves_ = 0;
  std::optional<FolderWriter> folder_;  // rank 0's, from its first save on
  std::string folder_name_;             // as it was given
  std::string path_;                    // of the checkpoint that is being written
};

}  // namespace coupler::checkpoint
