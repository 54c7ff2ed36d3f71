#include "cli/launch/log_files.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

namespace coupler::cli {

void make_log_folder(const std::string& folder) {
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  if (!failure && ::access(folder.c_str(), W_OK | X_OK) != 0) {
    failure.assign(errno, std::generic_category());
  }
  if (failure) {
    throw Error(ErrorCode::kIo,
                fmt::format("cannot write logs to the folder {}: {}", folder, failure.message()),
                {.subject = folder, .hint = "choose another folder with --log-dir"});
  }
}

std::string log_path(const std::string& folder, int rank) {
  return folder.empty() ? "" : fmt::format("{}/rank-{}.log", folder, rank);
}

}  // namespace coupler::cli
