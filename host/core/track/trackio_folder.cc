#include "track/trackio_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/process.h"
#include "base/sha256.h"
#include "base/text.h"
#include "base/user_folders.h"
#include "track/media.h"

namespace coupler::track {
namespace {

namespace fs = std::filesystem;

constexpr auto kLockWait = std::chrono::seconds(1);
constexpr auto kLockPoll = std::chrono::milliseconds(20);
constexpr size_t kCopied = size_t{1} << 20;  // bytes at a time

bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_';
}

[[noreturn]] void refuse_project(const std::string& project, const std::string& why) {
  fail_argument(fmt::format("the tracker 'trackio' cannot use the project name '{}': {}",
                            for_message(project), why),
                "project", "name another one in init_kwargs: {\"trackio\", {{\"project\", …}}}");
}

// The project's files have a name that Trackio makes of the characters it keeps.
std::string file_name_of(const std::string& project) {
  const bool ascii = std::all_of(project.begin(), project.end(),
                                 [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  // Which characters are kept depends on the tables of Unicode in the reader's Python.
  if (!ascii) refuse_project(project, "it has characters other than ASCII's");
  std::string name = project;
  std::erase_if(name, [](char c) { return !is_plain(c); });
  if (name.empty()) name = "default";
  if (name.starts_with("registry-")) {
    refuse_project(project, "Trackio keeps registries under names that begin with registry-");
  }
  constexpr std::array kTables = {"_system",
                                  "_configs",
                                  "_traces",
                                  "_artifacts",
                                  "_artifact_versions",
                                  "_artifact_aliases",
                                  "_run_artifact_links",
                                  "_external_run_artifact_links"};
  for (const std::string_view table : kTables) {
    if (name.size() > table.size() && name.ends_with(table)) {
      refuse_project(project, fmt::format("Trackio keeps a table of the project '{}' in {}.parquet",
                                          name.substr(0, name.size() - table.size()), name));
    }
  }
  return name;
}

// The type of the file system as Trackio finds it: of the longest mount point above the folder.
std::string file_system_of(const std::string& folder) {
  std::error_code unknown;
  const std::string path = fs::weakly_canonical(folder, unknown).string();
  std::ifstream mounts("/proc/mounts");
  std::string type;
  size_t longest = 0;
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream words(line);
    std::string device, point, kind;
    if (!(words >> device >> point >> kind)) continue;
    const bool above =
        path == point || path.starts_with(point.ends_with('/') ? point : point + "/");
    if (above && point.size() > longest) {
      longest = point.size();
      type = kind;
    }
  }
  return lower(type);
}

bool is_network_file_system(std::string type) {
  if (type.starts_with("fuse.")) type.erase(0, 5);
  constexpr std::array kWhole = {"fhgfs", "glusterfs", "ocfs2", "panfs", "cifs", "smbfs"};
  constexpr std::array kPart = {"nfs", "lustre", "weka", "gpfs", "beegfs", "ceph"};
  return std::find(kWhole.begin(), kWhole.end(), type) != kWhole.end() ||
         std::any_of(kPart.begin(), kPart.end(),
                     [&](const char* part) { return type.find(part) != std::string::npos; });
}

// Removes the file unless it was renamed.
class PartialBlob {
 public:
  explicit PartialBlob(const fs::path& folder)
      : path_(folder / (".partial." + to_hex(random_bytes32()))) {
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) throw_media_error(folder.string(), error.value(), kOwnTrackioDir);
    file_.reset(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    if (!file_) throw_media_error(path_.string(), errno, kOwnTrackioDir);
  }
  ~PartialBlob() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove(path_, ignored);
  }
  PartialBlob(const PartialBlob&) = delete;
  PartialBlob& operator=(const PartialBlob&) = delete;

  void write(std::string_view bytes) {
    if (!write_fully(file_.get(), bytes)) throw_media_error(path_.string(), errno, kOwnTrackioDir);
  }
  void rename(const fs::path& to) {
    std::error_code error;
    fs::create_directories(to.parent_path(), error);
    if (!error) fs::rename(path_, to, error);
    if (error) throw_media_error(to.string(), error.value(), kOwnTrackioDir);
    path_.clear();
  }

 private:
  fs::path path_;
  UniqueFd file_;
};

// Equal contents are kept once.
TrackioBlob store_blob(const fs::path& store, const ArtifactFile& file) {
  std::ifstream in(file.path, std::ios::binary);
  PartialBlob partial(store);
  Digest digest;
  uint64_t size = 0;
  std::string piece(kCopied, '\0');
  while (in.read(piece.data(), kCopied), in.gcount() > 0) {
    const std::string_view bytes(piece.data(), static_cast<size_t>(in.gcount()));
    digest.update(bytes);
    partial.write(bytes);
    size += bytes.size();
  }
  if (!in.eof()) {
    throw Error(ErrorCode::kIo, fmt::format("artifact file {} cannot be read", file.path),
                {.subject = file.path, .hint = "keep it until end_training"});
  }
  TrackioBlob blob{.path = file.inside, .digest = to_hex(digest.finish()), .size = size};
  partial.rename(store / blob.digest.substr(0, 2) / blob.digest);
  return blob;
}

}  // namespace

TrackioFolder::TrackioFolder(const std::string& project)
    : project_(project), file_name_(file_name_of(project)) {
  std::string folder = environment_value("TRACKIO_DIR");
  if (folder.empty()) folder = (fs::path(hugging_face_home()) / "trackio").string();
  folder_ = fs::absolute(folder).string();
  constexpr const char* kMode = "TRACKIO_STORAGE_MODE";
  const std::string mode = lower(environment_value(kMode));
  if (!mode.empty() && mode != "auto" && mode != "sqlite" && mode != "jsonl") {
    fail_config(fmt::format("{} is '{}'", kMode, for_message(mode)), kMode,
                "set it to auto, sqlite or jsonl, or unset it");
  }
  uses_inbox_ =
      mode == "jsonl" || (mode != "sqlite" && is_network_file_system(file_system_of(folder_)));
}

std::string TrackioFolder::database() const {
  return (fs::path(folder_) / (file_name_ + ".db")).string();
}

std::string TrackioFolder::media_inside(const std::string& run, int64_t step) const {
  return fmt::format("{}/{}/{}", file_name_, run, step);
}

std::string TrackioFolder::media(const std::string& run, int64_t step) const {
  return (fs::path(folder_) / "media" / media_inside(run, step)).string();
}

std::string TrackioFolder::inbox() const { return (fs::path(folder_) / "inbox").string(); }

void TrackioFolder::create() const {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (!error && ::access(folder_.c_str(), W_OK | X_OK) != 0) {
    error = std::error_code(errno, std::generic_category());
  }
  if (error) throw_media_error(folder_, error.value(), kOwnTrackioDir);
}

UniqueFd TrackioFolder::lock() const {
  const std::string path = (fs::path(folder_) / (file_name_ + ".lock")).string();
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!file) throw_media_error(path, errno, kOwnTrackioDir);
  const auto deadline = std::chrono::steady_clock::now() + kLockWait;
  while (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) {
      throw Error(ErrorCode::kIo, fmt::format("{} cannot be locked: {}", path, errno_message()),
                  {.subject = path,
                   .hint = "set TRACKIO_STORAGE_MODE=jsonl, or TRACKIO_DIR to a local disk"});
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      throw TrackerUnavailable(
          fmt::format("another process holds {}", path),
          {.subject = path, .hint = fmt::format("end that process (`fuser {}`)", path)});
    }
    std::this_thread::sleep_for(kLockPoll);
  }
  return file;
}

std::vector<TrackioBlob> TrackioFolder::store(const TrackedArtifact& artifact) const {
  const std::vector<ArtifactFile> files = files_of(artifact);
  if (files.empty()) {
    fail_argument(fmt::format("artifact '{}': {} has no files", artifact.name, artifact.path),
                  artifact.path, "write its files before you log it");
  }
  const fs::path store = fs::path(folder_) / "artifacts" / file_name_ / "blobs" / "sha256";
  std::vector<TrackioBlob> blobs;
  for (const ArtifactFile& file : files) {
    if (!valid_utf8(file.inside) || file.inside.find('\\') != std::string::npos) {
      fail_argument(fmt::format("artifact '{}': Trackio cannot hold a file named {}", artifact.name,
                                for_message(file.inside)),
                    artifact.path, "use names in UTF-8 without backslashes");
    }
    blobs.push_back(store_blob(store, file));
  }
  return blobs;
}

}  // namespace coupler::track
