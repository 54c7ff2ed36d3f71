// WeightTarget: the files that a model's weights are written to, which appear when all of them are
// on the disk: until then they lie beside, and what is there stays as it is. Single-threaded.
#pragma once

#include <string>
#include <vector>

#include "io/weight_shards.h"

namespace coupler {

class WeightTarget {
 public:
  // The one file of that path.
  static WeightTarget file(const std::string& path);
  // Files in a folder, which is made where it is not there; several get an index. Throws
  // Error(kIo).
  WeightTarget(std::string folder, WeightFiles files);
  // Removes what was not finished.
  ~WeightTarget();
  WeightTarget(const WeightTarget&) = delete;
  WeightTarget& operator=(const WeightTarget&) = delete;

  // Where a file is to be written: it must be whole and on the disk when finish() is called.
  std::string unfinished(const WeightFile& file) const;

  // Gives the files their names; weights that another save left in the folder go. Throws
  // Error(kIo).
  void finish();

 private:
  struct OneFile {};
  WeightTarget(OneFile, const std::string& path);

  std::string path(const std::string& name) const;
  std::vector<std::string> left_over(bool unfinished) const;
  void remove_unfinished() const;

  std::string folder_;
  WeightFiles files_;
  bool alone_ = false;  // the one file is the target: other files of the folder are others'
};

// Whether weights that are written to a folder take the place of the file of that name in it.
bool is_weight_file(const std::string& name);

}  // namespace coupler
