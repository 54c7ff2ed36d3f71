// Writing checkpoints into a folder: begin, the files, commit. One process of a job holds the
// FolderWriter; it gives the path of begin() to the others, which write their files there with
// DurableFile (that is what forces them to the disk) and tell it name, size and hash of each.
//
// Nothing on the disk is replaced before what follows it is there: a checkpoint gets its name when
// it is whole, and an older one is removed after that. So whenever a process is killed or the power
// fails, the newest checkpoint whose commit() had returned is there. Not for several threads.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "checkpoint/folder_lock.h"
#include "checkpoint/manifest.h"
#include "checkpoint/names.h"

namespace coupler::checkpoint {

class FolderWriter {
 public:
  // Makes the folder where it is missing. Throws Error(kIo) naming the process that writes there,
  // or what is in the way.
  explicit FolderWriter(const std::string& folder);
  ~FolderWriter();  // abandons what is not committed
  FolderWriter(const FolderWriter&) = delete;
  FolderWriter& operator=(const FolderWriter&) = delete;

  const std::string& folder() const { return folder_; }  // absolute, without links

  // One more than any that was begun there.
  int64_t next_number() const;

  // Removes what killed jobs left unfinished, as far as that is possible, and makes the folder for
  // the files of a new checkpoint, whose path it returns. No save gets a folder of this path again:
  // its name has the identity of the save. Throws Error(kIo); Error(kUsage) while another is under
  // way.
  std::string begin(int64_t number);

  // Of what was begun; its pieces carry it and its manifest names it.
  const std::string& save() const { return begun_.save; }

  // Returns the checkpoint's path once it cannot be lost any more. Throws Error(kIo) naming the
  // file that is not there with the manifest's size, or is a piece of another save, or what the
  // system says: then only abandon() can follow. (One that fails in its last step, forcing the name
  // to the disk, may leave a valid checkpoint.)
  std::string commit(const Manifest& manifest);

  // Removes what was begun, if anything, as far as that is possible: begin() tries again. A rank
  // that still writes there finds no folder under the path it knows.
  void abandon() noexcept;

  // Removes the oldest checkpoints until total_limit are left; those of keep are not removed, but
  // counted. Only after a commit() that returned, whose checkpoint always stays. What is not valid
  // is neither removed nor counted. Throws Error(kIo) naming what cannot be removed.
  void prune(int64_t total_limit, const std::set<int64_t>& keep = {});

 private:
  struct Begun {
    std::optional<int64_t> number;  // none: nothing is under way
    std::string save;
  };

  std::string path_of(const std::string& name) const { return folder_ + "/" + name; }
  std::string partial_path() const;
  void hide_and_remove(const Name& partial) const;
  void clear_leftovers() const;

  std::string folder_;
  FolderLock lock_;
  Begun begun_;
  std::optional<int64_t> committed_;  // by this object
};

}  // namespace coupler::checkpoint
