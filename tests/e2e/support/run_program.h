// Runs the built coupler program in the test's own folder and environment. Each call starts a
// process. Single-threaded.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "temporary_folder.h"

namespace coupler {

struct Outcome {
  int exit_code = -1;  // 128 + signal if a signal ended it
  std::string out;
  std::string err;
};

// A temporary folder, the working directory of the program.
class Workplace {
 public:
  void write(const std::string& name, const std::string& text, int mode = 0644) const;
  const std::filesystem::path& path() const { return folder_.path(); }
  // Shorter than CTest's timeout, which would leave the program running.
  std::chrono::seconds limit{110};

  // Runs coupler ARGUMENTS… with only PATH and `variables` in the environment. Fails the test if it
  // does not end within `limit`.
  Outcome coupler(const std::vector<std::string>& arguments,
                  std::map<std::string, std::string> variables = {}) const;
  // The same for another program, given by its path.
  Outcome run(const std::string& program, const std::vector<std::string>& arguments,
              std::map<std::string, std::string> variables = {}) const;

 private:
  TemporaryFolder folder_{"coupler-cli"};
};

// Whether the text contains the part.
bool has(const std::string& text, const std::string& part);
void expect_in(const std::string& text, const std::string& part);  // fails the test otherwise
// The content of a file; "" if it cannot be read.
std::string text_of(const std::filesystem::path& path);

}  // namespace coupler
