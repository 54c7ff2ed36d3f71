// The output of make_fixtures.py: folders as transformers saves them, with reference tensors and
// tables. Plain functions for one thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

namespace coupler {

inline std::string fixture(const std::string& name) {
  return std::string(MODEL_FIXTURES "/") + name;
}

inline nlohmann::json read_json(const std::string& path) {
  std::ifstream in(path);
  return nlohmann::json::parse(in);
}

// The largest difference between two elements.
inline double apart(const at::Tensor& a, const at::Tensor& b) {
  return a.sub(b).abs().max().item<double>();
}

// A temporary folder of one test.
class TestFolder {
 public:
  TestFolder() {
    std::string path = (std::filesystem::temp_directory_path() / "coupler-models-XXXXXX").string();
    if (mkdtemp(path.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = path;
  }
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  std::string path() const { return path_.string(); }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
  }
  // Copies a fixture's files, to be modified.
  void copy(const std::string& name) const {
    std::filesystem::copy(fixture(name), path_, std::filesystem::copy_options::recursive);
  }
  // Replaces a key of a JSON file.
  void set(const std::string& file, const std::string& key, const nlohmann::json& value) const {
    nlohmann::json document = read_json((path_ / file).string());
    document[nlohmann::json::json_pointer(key)] = value;
    write(file, document.dump());
  }

 private:
  std::filesystem::path path_;
};

// The message of the error that action throws; "" if it throws none.
template <class Action>
std::string message_of(const Action& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

template <class Action>
void expect_message(const Action& action, const std::vector<std::string>& parts) {
  const std::string message = message_of(action);
  for (const std::string& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << part << "\n  in: " << message;
}

}  // namespace coupler
