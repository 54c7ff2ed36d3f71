// Opens the files of a dataset as one table. Any thread.
#pragma once

#include <coupler/row.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "datasets/data_files.h"
#include "datasets/table.h"

namespace coupler::datasets {

struct LoadSettings {
  std::vector<Feature> features;  // empty: found out
  char delimiter = 0;             // 0: tab for .tsv, else comma
  char quote = '"';
  std::vector<std::string> column_names;
  uint64_t cache_bytes = 0;  // of decoded Parquet row groups, for all files together
};

// The rows of all files, one after another. Throws Error(kIo) naming a file that cannot be read or
// whose columns differ from those of the first, and Error(kInvalidArgument) for wrong settings.
std::shared_ptr<const Table> load_table(FileFormat format, const std::vector<std::string>& paths,
                                        const LoadSettings& settings);

}  // namespace coupler::datasets
