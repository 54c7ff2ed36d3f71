// Finding: one thing that `coupler doctor` says of this machine. Values and plain functions; no
// thread rule.
#pragma once

#include <coupler/error.h>

#include <string>
#include <vector>

namespace coupler::cli {

enum class Level { kOk, kNote, kWarning, kError };

struct Finding {
  Level level = Level::kOk;
  std::string what;    // what was found
  std::string why{};   // what follows from it; "" where all is well
  std::string mend{};  // the command that mends it, or what to do; "" where all is well
  int exit_code = 1;   // of an error
};
using Findings = std::vector<Finding>;

const char* to_string(Level level);

// An Error's message without its hint, which is the mend; otherwise: the mend where it has no hint.
Finding finding_of(const Error& error, const std::string& why, const std::string& otherwise);

// What installs a package of Debian's, on this system and for this user.
std::string install_command(const std::string& packages);

}  // namespace coupler::cli
