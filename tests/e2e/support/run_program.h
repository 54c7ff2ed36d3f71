// Runs the built coupler program in a folder and an environment of the test's own. Each call is a
// process of its own; not for several threads.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "temporary_folder.h"

namespace coupler {

struct Outcome {
  int exit_code = -1;  // 128 + signal where one ended it
  std::string out;
  std::string err;
};

// A folder of its own, the working directory of the program.
class Workplace {
 public:
  void write(const std::string& name, const std::string& text, int mode = 0644) const;
  const std::filesystem::path& path() const { return folder_.path(); }

  // coupler ARGUMENTS… with nothing in the environment but PATH and what variables says. Fails the
  // test where it does not end within 110 s.
  Outcome coupler(const std::vector<std::string>& arguments,
                  std::map<std::string, std::string> variables = {}) const;
  // The same of another program, by its path.
  Outcome run(const std::string& program, const std::vector<std::string>& arguments,
              std::map<std::string, std::string> variables = {}) const;

 private:
  TemporaryFolder folder_{"coupler-cli"};
};

// Whether the part stands in the text.
bool has(const std::string& text, const std::string& part);
void expect_in(const std::string& text, const std::string& part);  // fails the test elsewhere
// A whole file; "" where it cannot be read.
std::string text_of(const std::filesystem::path& path);

}  // namespace coupler
