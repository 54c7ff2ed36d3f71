#include "datasets/load.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "datasets/arrow_table.h"
#include "datasets/csv_table.h"
#include "datasets/features.h"
#include "datasets/json_table.h"
#include "datasets/views.h"

namespace coupler::datasets {
namespace {

using Paths = std::vector<std::string>;

[[noreturn]] void refuse_file(const std::string& path, const std::string& problem,
                              const std::string& hint) {
  throw Error(ErrorCode::kIo, fmt::format("{}: {}", path, problem),
              {.subject = path, .hint = hint});
}

std::vector<TablePtr> json_tables(const Paths& paths, const LoadSettings& settings) {
  std::vector<JsonFile> files;
  std::vector<Feature> features = settings.features;
  for (const std::string& path : paths) {
    files.push_back(open_json(path));
    if (!settings.features.empty()) continue;
    if (const Merged result = merge(features, infer_json(files.back())); !result.merged)
      refuse_file(
          path,
          fmt::format(
              "column '{}' has another type than in {}", for_message(result.column),
              fmt::join(paths.begin(),
                        paths.begin() + static_cast<std::ptrdiff_t>(files.size()) - 1, ", ")),
          "give a column one type in all files");
  }
  if (features.empty())
    refuse_file(paths.front(), "has no rows, or none with a column", "give one object a line");
  std::vector<TablePtr> tables;
  tables.reserve(files.size());
  for (JsonFile& file : files) tables.push_back(json_table(std::move(file), features));
  return tables;
}

void require_columns(const std::string& path, const std::vector<std::string>& own,
                     const std::vector<std::string>& wanted, const std::string& whose) {
  if (own == wanted) return;
  refuse_file(path,
              fmt::format("has the columns [{}], but {} [{}]", fmt::join(own, ", "), whose,
                          fmt::join(wanted, ", ")),
              "give all files the same columns, in the same order");
}

std::vector<TablePtr> csv_tables(const Paths& paths, const LoadSettings& settings) {
  std::vector<CsvFile> files;
  std::vector<Feature> features = settings.features;
  for (const std::string& path : paths) {
    CsvDialect dialect{settings.delimiter, settings.quote, settings.column_names};
    if (dialect.delimiter == 0) dialect.delimiter = lower(path).ends_with(".tsv") ? '\t' : ',';
    files.push_back(open_csv(path, dialect));
    const auto& own = files.back().dialect.column_names;
    if (!settings.features.empty()) {
      require_columns(path, own, names_of(features), "features has");
      continue;
    }
    if (files.size() > 1)
      require_columns(path, own, names_of(features), fmt::format("{} has", paths.front()));
    std::vector<Feature> found = infer_csv(files.back());
    for (size_t i = 0; i < features.size(); ++i)
      found[i].type = merge_csv(found[i].type, features[i].type);
    features = std::move(found);
  }
  std::vector<TablePtr> tables;
  tables.reserve(files.size());
  for (CsvFile& file : files) tables.push_back(csv_table(std::move(file), features));
  return tables;
}

// Files of Arrow's formats have the types of their columns inside.
std::vector<TablePtr> arrow_tables(FileFormat format, const Paths& paths,
                                   const LoadSettings& settings) {
  if (!settings.features.empty())
    fail_argument("features are given for files that have their own", "features",
                  "leave them out for Parquet and Arrow files");
  std::vector<TablePtr> tables;
  std::vector<Feature> features;
  const auto cache = std::make_shared<ChunkCache>(settings.cache_bytes);
  for (const std::string& path : paths) {
    tables.push_back(open_arrow(path, format == FileFormat::kParquet, cache));
    const std::vector<Feature>& own = tables.back()->features();
    if (tables.size() == 1) features = own;
    require_columns(path, names_of(own), names_of(features), fmt::format("{} has", paths.front()));
    if (const Merged result = merge(features, own); !result.merged)
      refuse_file(path,
                  fmt::format("column '{}' has another type than in the files before it",
                              for_message(result.column)),
                  "give a column one type in all files");
  }
  return tables;
}

void check_settings(FileFormat format, const LoadSettings& settings) {
  check_features(settings.features);
  const char delimiter = settings.delimiter == 0 ? ',' : settings.delimiter;
  for (const char c : {delimiter, settings.quote}) {
    if (c == '\n' || c == '\r' || delimiter == settings.quote)
      fail_argument("delimiter and quote must differ, and be no line ends", "delimiter",
                    "give one character each, such as ';' and '\"'");
  }
  if (format != FileFormat::kCsv) return;
  for (const Feature& feature : settings.features) {
    if (feature.type == FeatureType::kList || feature.type == FeatureType::kStruct)
      fail_argument(fmt::format("column '{}' cannot be {} in a CSV file", for_message(feature.name),
                                to_string(feature)),
                    "features", "read it as a string, and convert it with map");
  }
}

}  // namespace

std::shared_ptr<const Table> load_table(FileFormat format, const Paths& paths,
                                        const LoadSettings& settings) {
  check_settings(format, settings);
  std::vector<TablePtr> tables;
  if (format == FileFormat::kJson) {
    tables = json_tables(paths, settings);
  } else if (format == FileFormat::kCsv) {
    tables = csv_tables(paths, settings);
  } else {
    tables = arrow_tables(format, paths, settings);
  }
  return tables.size() == 1 ? tables.front() : concatenate(tables);
}

}  // namespace coupler::datasets
