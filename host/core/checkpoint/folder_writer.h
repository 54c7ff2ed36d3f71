// FolderWriter: writes checkpoints into a folder: begin, the files, commit. One process of a job
// owns it and gives the path from begin() to the others. They write their files there with
// DurableFile, which forces them to disk, and report each file's name, size and hash.
//
// Nothing on disk is removed before its replacement is complete: a checkpoint gets its name once
// it is complete, and only then is an older one removed. So if a process is killed or the power
// fails, the newest checkpoint whose commit() returned is intact. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "checkpoint/folders.h"
#include "checkpoint/manifest.h"
#include "checkpoint/names.h"

namespace coupler::checkpoint {

class FolderWriter {
 public:
  // Creates the folder if it is missing. Throws Error(kIo) naming the process that writes there or
  // the file that is in the way.
  explicit FolderWriter(const std::string& folder);
  ~FolderWriter();  // abandons a checkpoint that is not committed
  FolderWriter(const FolderWriter&) = delete;
  FolderWriter& operator=(const FolderWriter&) = delete;

  const std::string& folder() const { return folder_; }  // absolute, without links

  // One more than the highest number begun there.
  int64_t next_number() const;

  // Removes what killed jobs left unfinished, as far as possible, creates the folder for the files
  // of a new checkpoint, and returns its path. No other save gets the same path, since the name
  // contains the identity of the save. Throws Error(kIo), or Error(kUsage) while another save is in
  // progress.
  std::string begin(int64_t number);

  // The identity of the save in progress, which its pieces and its manifest carry.
  const std::string& save() const { return begun_->save; }

  // Returns the checkpoint's path once it is durable. Throws Error(kIo) naming a file that lacks
  // the manifest's size or is a piece of another save, or the system's error; then only abandon()
  // may follow. (A commit that fails in its last step, forcing the name to disk, may leave a valid
  // checkpoint.)
  std::string commit(const Manifest& manifest);

  // Removes the save in progress, if any, as far as possible; begin() tries again. A rank that is
  // still writing no longer finds the folder under its path.
  void abandon() noexcept;

  // Removes the oldest checkpoints until total_limit are left. Call it only after commit()
  // returned; that checkpoint always stays. Invalid checkpoints are neither removed nor counted.
  // Throws Error(kIo) naming what cannot be removed.
  void prune(int64_t total_limit);

 private:
  std::string path_of(const std::string& name) const { return folder_ + "/" + name; }
  void hide_and_remove(const Name& partial) const;
  void clear_leftovers() const;

  std::string folder_;
  FolderLock lock_;
  std::optional<Name> begun_;         // the save in progress, if any
  std::optional<int64_t> committed_;  // by this object
};

}  // namespace coupler::checkpoint
