// Which files belong to which split of a dataset, by the rules of the Hugging Face hub. Plain
// functions, any thread.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace coupler::datasets {

enum class FileFormat { kJson, kCsv, kParquet, kArrow };

struct DataFiles {
  FileFormat format = FileFormat::kJson;
  // The paths of each split, sorted.
  std::map<std::string, std::vector<std::string>> splits;
};

// The format by the file's ending. Throws Error(kInvalidArgument) listing the known ones.
FileFormat format_of(const std::string& path);

// path: a file, a pattern (*, ?, […]) or a folder. The files of a pattern are the split "train". In
// a folder, also below it, a file named NAME-00000-of-00002 belongs to the split NAME; else the
// words train, validation (valid, val, dev) and test (eval) in a file's or folder's name say it; if
// there are none, all is "train". Throws Error(kIo) if there are no files, and
// Error(kInvalidArgument) if their formats differ or are unknown.
DataFiles find_data_files(const std::string& path);

}  // namespace coupler::datasets
