// JSON lines, one object a line, and files with an array of objects. Blank lines are skipped; a
// column that a row lacks is null. A row is parsed when it is read.
#pragma once

#include <coupler/row.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "datasets/table.h"
#include "datasets/watched_file.h"

namespace coupler::datasets {

struct JsonFile {
  std::shared_ptr<const WatchedFile> file;
  std::vector<uint64_t> starts;  // of each row in the text
  bool array = false;
};

// Throws Error(kIo) if the file cannot be opened, or an array is not complete.
JsonFile open_json(const std::string& path);

// Parses every row with several threads, and returns the columns in the order in which they first
// occur. Throws Error(kIo) naming the first line that is not an object in JSON and UTF-8, or whose
// types exclude those of the lines before it.
std::vector<Feature> infer_json(const JsonFile& json);

// features: of infer_json, merged with those of other files, or the user's.
std::shared_ptr<const Table> json_table(JsonFile json, std::vector<Feature> features);

}  // namespace coupler::datasets
