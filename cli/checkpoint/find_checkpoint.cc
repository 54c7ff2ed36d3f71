#include "cli/checkpoint/find_checkpoint.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <system_error>

#include "checkpoint/folder.h"
#include "checkpoint/names.h"
#include "cli/machine/text_values.h"
#include "cli/text/output.h"

namespace coupler::cli {

bool is_checkpoint(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path + "/" + checkpoint::kManifestName, error);
}

bool holds_checkpoints(const std::string& path) {
  for (const std::filesystem::path& entry : entries_of(path)) {
    const auto name = checkpoint::read_name(entry.filename().string());
    if (name && name->kind == checkpoint::NameKind::kCommitted) return true;
  }
  return false;
}

std::string find_checkpoint(const std::string& path) {
  if (is_checkpoint(path)) return path;
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) {
    checkpoint::open_checkpoint(path);  // throws, naming what it is
    return path;
  }
  const checkpoint::Newest newest = checkpoint::newest(path);
  for (const checkpoint::Entry& skipped : newest.skipped)
    std::fprintf(stderr, "coupler: skipping %s: %s\n", skipped.path.c_str(),
                 printable(skipped.reason).c_str());
  if (newest.entry) return newest.entry->path;
  if (newest.skipped.empty()) checkpoint::open_checkpoint(path);
  throw Error(
      ErrorCode::kIo, fmt::format("{} holds no valid checkpoint", path),
      {.subject = path, .hint = "run 'coupler checkpoint list' to see why each one is invalid"});
}

}  // namespace coupler::cli
