#include "cli/process/become.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace coupler::cli {

void become(std::vector<std::string> command, const std::string& hint) {
  std::vector<char*> words;
  words.reserve(command.size() + 1);
  for (std::string& word : command) words.push_back(word.data());
  words.push_back(nullptr);
  std::fflush(stdout);
  ::execv(words[0], words.data());
  throw Error(ErrorCode::kIo, fmt::format("cannot run {}: {}", command[0], std::strerror(errno)),
              {.subject = command[0], .hint = hint});
}

}  // namespace coupler::cli
