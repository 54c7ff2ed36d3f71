// WeightTarget: the files that a model's weights are written to. They appear when all of them are
// on the disk; until then they have temporary names, and existing files stay. Single-threaded.
#pragma once

#include <string>
#include <vector>

#include "formats/weight_shards.h"

namespace coupler {

class WeightTarget {
 public:
  // A single file at that path.
  static WeightTarget file(const std::string& path);
  // Files in a folder, which is created if missing; several files get an index. Throws Error(kIo).
  WeightTarget(std::string folder, WeightFiles files);
  // Removes unfinished files.
  ~WeightTarget();
  WeightTarget(const WeightTarget&) = delete;
  WeightTarget& operator=(const WeightTarget&) = delete;

  // The path to write a file to; it must be complete and on the disk when finish() is called.
  std::string unfinished(const WeightFile& file) const;

  // Gives the files their final names, and removes weights that another save left in the folder.
  // Throws Error(kIo).
  void finish();

 private:
  struct OneFile {};
  WeightTarget(OneFile, const std::string& path);

  std::string path(const std::string& name) const;
  std::vector<std::string> left_over(bool unfinished) const;
  void remove_unfinished() const;

  std::string folder_;
  WeightFiles files_;
  bool alone_ = false;  // the target is a single file; leave the folder's other files alone
};

// Whether writing weights to a folder replaces a file of that name in it.
bool is_weight_file(const std::string& name);

}  // namespace coupler
