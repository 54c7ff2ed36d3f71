// Finding: one result of `coupler doctor`. Values and plain functions, callable from any thread.
#pragma once

#include <coupler/error.h>

#include <string>
#include <vector>

namespace coupler::cli {

enum class Level { kOk, kNote, kWarning, kError };

struct Finding {
  Level level = Level::kOk;
  std::string what;    // what was found
  std::string why{};   // the consequence; "" for kOk
  std::string mend{};  // the command that fixes it, or what to do; "" for kOk
  int exit_code = 1;   // of an error
};
using Findings = std::vector<Finding>;

const char* to_string(Level level);

// An Error as a finding: its hint becomes `mend`; if it has none, `otherwise` does.
Finding finding_of(const Error& error, const std::string& why, const std::string& otherwise);

// The command that installs a Debian package as this user; without apt-get, a sentence instead.
std::string install_command(const std::string& packages);

}  // namespace coupler::cli
