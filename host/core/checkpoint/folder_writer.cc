#include "checkpoint/folder_writer.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <utility>
#include <vector>

#include "base/durable_file.h"
#include "checkpoint/folder.h"
#include "checkpoint/folders.h"
#include "checkpoint/manifest.h"
#include "checkpoint/names.h"

namespace coupler::checkpoint {
namespace {

[[noreturn]] void misuse(const std::string& message, const std::string& hint) {
  throw Error(ErrorCode::kUsage, message, {.subject = "checkpoint", .hint = hint});
}

// All entries with names of ours, committed or not, sorted by number.
std::vector<Name> our_names_in(const std::string& folder) {
  std::vector<Name> names;
  for (const std::string& entry : names_in(folder)) {
    if (const auto name = read_name(entry)) names.push_back(*name);
  }
  std::sort(names.begin(), names.end(),
            [](const Name& a, const Name& b) { return a.number < b.number; });
  return names;
}

bool exists(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0) return true;
  if (errno != ENOENT) throw_io("examine", path, errno);
  return false;
}

void check_files(const std::string& folder, const Manifest& manifest) {
  for (const ManifestFile& file : manifest.files) {
    const std::string problem = file_problem(folder, manifest, file, /*follow_link=*/false);
    if (problem.empty()) continue;
    const std::string path = folder + "/" + file.name;
    throw Error(ErrorCode::kIo, fmt::format("{} {}", path, problem),
                {.subject = path,
                 .hint = "make sure that every process of the job sees the same folder and that "
                         "nothing else changes it"});
  }
}

[[noreturn]] void fail_exists(const std::string& path) {
  throw Error(ErrorCode::kIo, fmt::format("{} already exists", path),
              {.subject = path, .hint = "checkpoints are never replaced: save as the next number"});
}

}  // namespace

FolderWriter::FolderWriter(const std::string& folder)
    : folder_(make_folders(folder)), lock_(folder_) {}

FolderWriter::~FolderWriter() { abandon(); }

int64_t FolderWriter::next_number() const {
  int64_t next = 0;
  for (const Name& name : our_names_in(folder_)) next = std::max(next, name.number + 1);
  return next;
}

void FolderWriter::clear_leftovers() const {
  const auto names = our_names_in(folder_);
  // Makes the hiding renames durable before the first file goes, whoever hid them: otherwise a
  // power loss could leave a folder with its old name but not all its files.
  if (std::any_of(names.begin(), names.end(),
                  [](const Name& name) { return name.kind == NameKind::kRemoved; }))
    sync_folder(folder_);
  for (const Name& name : names) {
    if (name.kind == NameKind::kRemoved) remove_folder(path_of(name_of(name)));
  }
  for (const Name& name : names) {
    if (name.kind == NameKind::kPartial) hide_and_remove(name);
  }
}

// Renamed first, so that a late rank cannot create files in the folder while it is removed.
void FolderWriter::hide_and_remove(const Name& partial) const {
  const std::string hidden = path_of(name_of({NameKind::kRemoved, partial.number, partial.save}));
  const std::string path = path_of(name_of(partial));
  if (::rename(path.c_str(), hidden.c_str()) != 0) throw_io("remove", path, errno);
  remove_folder(hidden);
}

std::string FolderWriter::begin(int64_t number) {
  if (begun_)
    misuse(fmt::format("begin(checkpoint_{}) was called while checkpoint_{} is in progress", number,
                       begun_->number),
           "commit or abandon the current checkpoint first");
  const std::string final = path_of(name_of({NameKind::kCommitted, number}));
  if (number < 0 || !read_name(name_of({NameKind::kCommitted, number})))
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} is not a valid checkpoint number", number),
                {.subject = "number", .hint = "count from 0"});
  if (exists(final)) fail_exists(final);
  try {
    clear_leftovers();
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): leftovers only cost space
  }
  const Name partial{NameKind::kPartial, number, new_save_identity()};
  std::string path = path_of(name_of(partial));
  if (::mkdir(path.c_str(), 0777) != 0) throw_io("create", path, errno);
  begun_ = partial;
  return path;
}

std::string FolderWriter::commit(const Manifest& manifest) {
  if (!begun_) misuse("commit() was called without a checkpoint in progress", "call begin() first");
  if (manifest.number != begun_->number || manifest.save != begun_->save)
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format(
            "the manifest is for checkpoint_{}, save '{}', but checkpoint_{}, save '{}', was begun",
            manifest.number, manifest.save, begun_->number, begun_->save),
        {.subject = "number", .hint = {}});
  const std::string partial = path_of(name_of(*begun_));
  std::string final = path_of(name_of({NameKind::kCommitted, begun_->number}));
  const std::string text = format(manifest);
  check_files(partial, manifest);
  // The order matters: first the files' names, then the manifest that lists them, then the name by
  // which readers find the checkpoint.
  sync_folder(partial);
  DurableFile file(partial + "/" + kManifestName);
  file.write(text.data(), text.size());
  file.finish();
  sync_folder(partial);
  if (exists(final)) fail_exists(final);
  rename_durably(partial, final);
  committed_ = begun_->number;
  begun_.reset();
  return final;
}

void FolderWriter::abandon() noexcept {
  const std::optional<Name> partial = std::exchange(begun_, std::nullopt);
  if (!partial) return;
  try {
    hide_and_remove(*partial);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the next begin() tries again
  }
}

void FolderWriter::prune(int64_t total_limit) {
  if (!committed_ || begun_)
    misuse("prune() was called before the new checkpoint was committed",
           "call prune() after commit()");
  if (total_limit < 1)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a limit of {} checkpoints would leave none", total_limit),
                {.subject = "total_limit", .hint = "give 1 or more"});
  std::vector<int64_t> valid;  // by number
  for (const Entry& entry : list(folder_)) {
    if (entry.manifest) valid.push_back(entry.number);
  }
  auto excess = static_cast<int64_t>(valid.size()) - total_limit;
  for (const int64_t number : valid) {
    if (excess <= 0) break;
    if (number == *committed_) continue;
    const std::string hidden = path_of(name_of({NameKind::kRemoved, number}));
    const std::string path = path_of(name_of({NameKind::kCommitted, number}));
    if (::rename(path.c_str(), hidden.c_str()) != 0) throw_io("remove", path, errno);
    --excess;
  }
  clear_leftovers();
}

}  // namespace coupler::checkpoint
