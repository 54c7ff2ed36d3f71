// Small checkpoints in a temporary folder of one test. Single-threaded.
#pragma once

#include <coupler/error.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <stdexcept>
#include <string>

#include "base/durable_file.h"
#include "checkpoint/folder.h"
#include "checkpoint/folder_writer.h"

namespace coupler::checkpoint {

class CheckpointFiles : public ::testing::Test {
 protected:
  CheckpointFiles() {
    std::string path = (std::filesystem::temp_directory_path() / "coupler-commit-XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    folder_ = path;
  }
  ~CheckpointFiles() override { std::filesystem::remove_all(folder_); }

  std::string at(const std::string& name) const { return (folder_ / name).string(); }
  std::string checkpoints() const { return at("checkpoints"); }

  static void put(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path, std::ios::binary) << text;
  }

  static ManifestFile write_file(const std::string& folder, const std::string& name,
                                 const std::string& text) {
    DurableFile file(folder + "/" + name);
    file.write(text.data(), text.size());
    const WrittenFile written = file.finish();
    return {name, written.bytes, written.sha256};
  }

  // A manifest of two files, which are written to the folder that begin() returns.
  static Manifest fill(FolderWriter& writer, int64_t number) {
    const std::string folder = writer.begin(number);
    Manifest manifest;
    manifest.number = number;
    manifest.save = writer.save();
    manifest.steps = 100 * number;
    manifest.world_size = 2;
    manifest.backend = "single";
    manifest.saved_at = now_utc();
    const std::string text = "of " + std::to_string(number);
    manifest.files = {write_file(folder, "model.bin", "model " + text),
                      write_file(folder, "optimizer.bin", "optimizer " + text)};
    return manifest;
  }

  static std::string save(FolderWriter& writer, int64_t number) {
    return writer.commit(fill(writer, number));
  }

  // Names in the folder of checkpoints, sorted, without the lock file.
  std::string entries() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(checkpoints()))
      names.insert(entry.path().filename().string());
    names.erase(".checkpoint.lock");
    std::string text;
    for (const std::string& name : names) text += (text.empty() ? "" : " ") + name;
    return text;
  }

  std::filesystem::path folder_;
};

inline std::string error_of(const std::function<void()>& action, ErrorCode code = ErrorCode::kIo) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "no error";
}

}  // namespace coupler::checkpoint
