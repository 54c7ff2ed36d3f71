// Runs checkpoint_saver with disk_faults and examines the result. Single-threaded.
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

// Whether to run the full test.
bool is_full();

// A folder of the test; in an in-memory file system if in_memory is set and one exists.
class SaverFolder {
 public:
  explicit SaverFolder(bool in_memory);
  ~SaverFolder();
  SaverFolder(const SaverFolder&) = delete;
  SaverFolder& operator=(const SaverFolder&) = delete;

  const std::string& base() const { return base_; }  // the folder that disk_faults watches
  std::string checkpoints() const { return base_ + "/run/checkpoints"; }
  std::string log() const { return path_ + "/log"; }
  std::string left() const { return path_ + "/left"; }  // the state after a power loss
  void clear() const;                                   // removes everything in it

 private:
  std::string path_;
  std::string base_;
};

// variables: those of disk_faults. Without any, the saver runs without disk_faults.
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

// What is wrong after a kill, an error or a power loss; "" if nothing. Wrong: the newest checkpoint
// is older than the last reported one, or a listed one is invalid or differs from what was saved.
std::string examine(const std::string& checkpoints, long long reported, size_t bytes);

// What is wrong after another save, which must succeed; "" if nothing. Leftovers in the folder, or
// too many checkpoints, are wrong.
std::string go_on(const SaverFolder& folder, const SaverArguments& arguments, long long reported);

// Names in the folder that are neither checkpoints nor the lock.
std::vector<std::string> leftovers(const std::string& checkpoints);

}  // namespace coupler::testing_checkpoint
