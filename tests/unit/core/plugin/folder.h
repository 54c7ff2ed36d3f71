// Shared by the tests of this folder: a temporary folder with copies of the fixtures, and the
// message of an expected Error.
#pragma once

#include <coupler/error.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

namespace coupler::test {

class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "coupler-plugin-XXXXXX");
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = std::filesystem::canonical(pattern);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code left_behind;
    std::filesystem::remove_all(path_, left_behind);
  }

  std::string path(const std::string& name = "") const {
    return name.empty() ? path_.string() : (path_ / name).string();
  }

  static std::string file_name(const std::string& fixture) {
    return "libcoupler_" + fixture + ".so";
  }

  // Adds a copy of a fixture; returns its path.
  std::string add(const std::string& fixture, const std::string& as = "") const {
    std::string to = path(file_name(as.empty() ? fixture : as));
    std::filesystem::copy_file(std::filesystem::path(COUPLER_FIXTURES) / file_name(fixture), to);
    std::filesystem::permissions(to, std::filesystem::perms(0755));
    return to;
  }

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }

 private:
  std::filesystem::path path_;
};

inline void patch(const std::string& file, int64_t offset, const std::string& bytes) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(offset);
  stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// The message of the Error(code) that function throws; a test failure if it throws none.
inline std::string message_of(ErrorCode code, const std::function<void()>& function) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(to_string(error.code()), to_string(code)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no Error was thrown";
  return "";
}

inline void expect_text(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << "no \"" << part << "\" in:\n" << message;
}

}  // namespace coupler::test
