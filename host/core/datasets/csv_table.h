// CSV and TSV files (RFC 4180): fields in quotes may contain delimiters, line ends and doubled
// quotes. Values and their types are those that Arrow's CSV reader finds, except that dates stay
// strings and that a type holds for the whole file. Blank lines are skipped. A row is parsed when
// it is read.
#pragma once

#include <coupler/row.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "datasets/table.h"
#include "datasets/watched_file.h"

namespace coupler::datasets {

struct CsvDialect {
  char delimiter = ',';
  char quote = '"';
  std::vector<std::string> column_names;  // empty: the first row has them
};

struct CsvFile {
  std::shared_ptr<const WatchedFile> file;
  CsvDialect dialect;  // with column names
  std::vector<uint64_t> starts;
};

// Throws Error(kIo) if the file cannot be opened or has no header, and naming the line of a quote
// that is not closed.
CsvFile open_csv(const std::string& path, const CsvDialect& dialect);

// Parses every row with several threads. int64, bool and float64 if all values of the column are,
// empty ones and such as NA aside, which are null then; else string. Throws Error(kIo) naming the
// first line that has another number of fields or is not UTF-8.
std::vector<Feature> infer_csv(const CsvFile& csv);

// The type of a column that has one type in some files, and another in others.
FeatureType merge_csv(FeatureType one, FeatureType other);

// features: of infer_csv, merged with those of other files, or the user's, in the file's order.
std::shared_ptr<const Table> csv_table(CsvFile csv, std::vector<Feature> features);

}  // namespace coupler::datasets
