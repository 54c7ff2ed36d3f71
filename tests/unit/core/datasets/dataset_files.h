// What tests of datasets share: files in a folder of the test, and tables as JSON.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "datasets/load.h"
#include "datasets/table.h"
#include "temporary_folder.h"

namespace coupler::testing {

// A folder of files.
class DatasetFolder {
 public:
  // Writes a file, and the folders above it, and returns its path.
  std::string write(const std::string& name, const std::string& text) const {
    const auto path = folder_.path() / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
    return path.string();
  }
  std::string path(const std::string& name = "") const { return (folder_.path() / name).string(); }

 private:
  TemporaryFolder folder_{"dataset"};
};

inline std::string fixture(const std::string& name) {
  return std::string(COUPLER_SOURCE_DIR) + "/tests/unit/core/datasets/fixtures/" + name;
}

inline std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::shared_ptr<const datasets::Table> load_file(
    const std::string& path, const datasets::LoadSettings& settings = {}) {
  return datasets::load_table(datasets::format_of(path), {path}, settings);
}

inline nlohmann::ordered_json rows_of(const datasets::Table& table) {
  auto rows = nlohmann::ordered_json::array();
  for (size_t row = 0; row < table.size(); ++row)
    rows.push_back(nlohmann::ordered_json::parse(to_string(table.read(row))));
  return rows;
}

inline nlohmann::ordered_json types_of(const datasets::Table& table) {
  auto types = nlohmann::ordered_json::object();
  for (const Feature& feature : table.features()) types[feature.name] = to_string(feature);
  return types;
}

// A table has the types and rows that fixtures/make.py got from pyarrow.
inline void expect_as_pyarrow(const datasets::Table& table, const std::string& expected) {
  const auto wanted = nlohmann::ordered_json::parse(contents(fixture(expected)));
  EXPECT_EQ(types_of(table).dump(), wanted["features"].dump());
  const auto rows = rows_of(table);
  ASSERT_EQ(rows.size(), wanted["rows"].size());
  for (size_t row = 0; row < rows.size(); ++row) EXPECT_EQ(rows[row], wanted["rows"][row]) << row;
}

}  // namespace coupler::testing
