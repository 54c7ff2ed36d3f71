// Writes weights as Python's safetensors, transformers and Accelerate read them. Plain function,
// any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "formats/weight_index.h"
#include "weights/weight_source.h"

namespace coupler::weights {

// WeightTarget: the files that a model's weights are written to. They appear when all of them are
// on the disk; until then they have temporary names, and existing files stay. Single-threaded.
class WeightTarget {
 public:
  // Files in a folder, which is created if missing; several files get an index. alone: the target
  // is a single file, and the folder's other files are not touched. Throws Error(kIo).
  WeightTarget(std::string folder, formats::WeightFiles files, bool alone = false);
  // Removes unfinished files.
  ~WeightTarget();
  WeightTarget(const WeightTarget&) = delete;
  WeightTarget& operator=(const WeightTarget&) = delete;

  // The path to write a file to; it must be complete and on the disk when finish() is called.
  std::string unfinished(const formats::WeightFile& file) const;

  // Gives the files their final names, and removes weights that another save left in the folder.
  // Throws Error(kIo).
  void finish();

 private:
  std::string path(const std::string& name) const;
  std::vector<std::string> left_over(bool unfinished) const;
  void remove_unfinished() const;

  std::string folder_;
  formats::WeightFiles files_;
  bool alone_;
};

// Whether writing weights to a folder replaces a file of that name in it.
bool is_weight_file(const std::string& name);

struct WrittenWeights {
  size_t files = 0;
  size_t tensors = 0;
  uint64_t bytes = 0;  // of the tensors
};

// Whether weights are written to that path as one file, not as files in a folder.
bool is_one_file(const std::string& target);

// Writes one file if the target ends in .safetensors, else to a folder: model.safetensors, or
// numbered files of at most max_shard_size bytes and their index. Existing files are replaced only
// once everything is on the disk. Throws Error(kInvalidArgument) if the target is part of the
// source or cannot be divided; Error(kIo) if something cannot be read or written, leaving no
// unfinished file.
WrittenWeights write_weights(const WeightSource& source, const std::string& target,
                             std::optional<uint64_t> max_shard_size);

}  // namespace coupler::weights
