#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <system_error>

#include "base/file_descriptor.h"
#include "base/units.h"
#include "cli/doctor/checks.h"
#include "cli/text/output.h"

namespace coupler::cli {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kLittle = uint64_t{1} << 30;

// Writes a trial file and removes it. Returns 0, or the errno of what failed.
int try_file(const fs::path& folder) {
  std::string name = (folder / ".coupler-doctor-XXXXXX").string();
  const UniqueFd file(mkostemp(name.data(), O_CLOEXEC));
  if (!file) return errno;
  const int failure = write(file.get(), "", 1) == 1 ? 0 : errno;
  unlink(name.c_str());
  return failure;
}

struct Folder {
  std::string said_by;  // the variable or key that names it: "TMPDIR", "checkpoint.dir"
  fs::path path;
  bool made;  // Coupler creates it if it is missing
};

Finding look_at(const Folder& folder) {
  const std::string name = one_line(fmt::format("{} ({})", folder.path.string(), folder.said_by));
  const std::string why =
      folder.made ? "what the job writes there is lost" : "programs that need temporary files fail";
  fs::path there = fs::absolute(folder.path);
  std::error_code unreadable;
  while (folder.made && !fs::exists(there, unreadable) && there != there.parent_path()) {
    there = there.parent_path();
  }
  if (!fs::is_directory(there, unreadable)) {
    return {Level::kError, name + " is not a folder", why, "mkdir -p " + folder.path.string()};
  }
  if (const int failure = try_file(there); failure != 0) {
    const bool full = failure == ENOSPC || failure == EDQUOT;
    return {
        Level::kError,
        fmt::format("{} cannot be written to: {}", name, std::generic_category().message(failure)),
        why,
        full ? "free some space: du -sh " + there.string() + "/*"
             : fmt::format("ls -ld {}; or set {} to another folder", there.string(),
                           folder.said_by)};
  }
  struct statvfs room = {};
  if (statvfs(there.c_str(), &room) != 0) return {Level::kOk, name + " can be written to"};
  const uint64_t left = room.f_bavail * room.f_frsize;
  if (left < kLittle) {
    return {Level::kWarning, fmt::format("{} has {} left", name, format_byte_size(left)),
            "checkpoints and offloaded state need more",
            "free some space, or change " + folder.said_by};
  }
  return {Level::kOk, fmt::format("{} can be written to, {} left", name, format_byte_size(left))};
}

}  // namespace

Findings check_folders(const config::Config& config) {
  const char* const temporary = std::getenv("TMPDIR");
  const bool named = temporary != nullptr && *temporary != '\0';
  std::vector<Folder> folders = {{"TMPDIR", named ? temporary : "/tmp", false}};
  const auto add = [&folders](const char* key, const std::string& path) {
    if (!path.empty()) folders.push_back({key, path, true});
  };
  add("checkpoint.dir", config.checkpoint.dir);
  add("profile.dir", config.profile.dir);
  add("training.logging_dir", config.training.logging_dir);
  if (!config.training.log_with.empty()) add("training.project_dir", config.training.project_dir);
  if (config.memory.offload_optimizer_device == "nvme") {
    add("memory.offload_optimizer_nvme_path", config.memory.offload_optimizer_nvme_path);
  }
  Findings findings;
  findings.reserve(folders.size());
  for (const Folder& folder : folders) findings.push_back(look_at(folder));
  return findings;
}

}  // namespace coupler::cli
