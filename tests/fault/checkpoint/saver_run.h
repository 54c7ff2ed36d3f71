// Runs checkpoint_saver behind disk_faults, and examines what it left. Single-threaded.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

namespace coupler::testing_checkpoint {

struct SaverArguments {
  int count = 3;
  int limit = 1;
  size_t bytes = 3000;
};

struct SaverEnd {
  int code = 0;  // 128 + signal
  std::string reports;
};

// Whether the test is to fill the disk.
bool is_full();

// A folder of the test's own, on a file system in memory where in_memory and there is one.
class SaverFolder {
 public:
  explicit SaverFolder(bool in_memory);
  ~SaverFolder();
  SaverFolder(const SaverFolder&) = delete;
  SaverFolder& operator=(const SaverFolder&) = delete;

  const std::string& base() const { return base_; }  // what disk_faults looks at
  std::string checkpoints() const { return base_ + "/run/checkpoints"; }
  std::string log() const { return path_ + "/log"; }
  std::string left() const { return path_ + "/left"; }  // for what a loss of power leaves
  void clear() const;                                   // all of it

 private:
  std::string path_;
  std::string base_;
};

// variables: of disk_faults. The saver is started without it where there are none.
class Saver {
 public:
  Saver(const SaverFolder& folder, const SaverArguments& arguments,
        const std::map<std::string, std::string>& variables);
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  pid_t pid() const { return pid_; }
  SaverEnd wait();

 private:
  pid_t pid_ = 0;
  int reports_ = -1;
};

// "" or what is wrong after a kill, an error or a loss of power: the newest checkpoint is older
// than the one that was reported last, one that is listed is not valid or not what was saved.
std::string examine(const std::string& checkpoints, long long reported, size_t bytes);

// "" or what is wrong with going on from there: what has no place in the folder after one more
// save, which has to succeed, or after beginning one.
std::string go_on(const SaverFolder& folder, const SaverArguments& arguments, long long reported);

// Names in the folder that are neither checkpoints nor the lock.
std::vector<std::string> leftovers(const std::string& checkpoints);

}  // namespace coupler::testing_checkpoint
