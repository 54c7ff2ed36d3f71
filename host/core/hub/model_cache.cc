#include "hub/model_cache.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "base/durable_file.h"
#include "base/error.h"
#include "base/text.h"

namespace coupler::hub {
namespace {

namespace fs = std::filesystem;

void make_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw_io("create the folder", path.string(), error.value(), kOwnCache);
}

}  // namespace

ModelCache::ModelCache(const std::string& cache, const std::string& id) : cache_(cache) {
  name_ = "models";
  for (const std::string& part : split(id, '/')) name_ += "--" + part;
  folder_ = (fs::path(cache) / name_).string();
}

std::string ModelCache::commit_of(const std::string& revision) const {
  if (is_commit(revision)) return revision;
  const fs::path path = fs::path(folder_) / "refs" / revision;
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return "";
  std::ifstream in(path, std::ios::binary);
  std::string commit(41, '\0');
  in.read(commit.data(), static_cast<std::streamsize>(commit.size()));
  commit.resize(static_cast<size_t>(in.gcount()));
  while (!commit.empty() && (commit.back() == '\n' || commit.back() == '\r')) commit.pop_back();
  if (!is_commit(commit)) {
    throw Error(
        ErrorCode::kIo,
        fmt::format("{} should hold a commit, but has '{}'", path.string(), for_message(commit)),
        {.subject = path.string(), .hint = "remove this file; it is then written again"});
  }
  return commit;
}

std::string ModelCache::snapshot(const std::string& commit) const {
  return (fs::path(folder_) / "snapshots" / commit).string();
}

std::string ModelCache::blob(const std::string& etag) const {
  return (fs::path(folder_) / "blobs" / etag).string();
}

Cached ModelCache::state_of(const std::string& commit, const std::string& file) const {
  const fs::path path = fs::path(snapshot(commit)) / file;
  std::error_code error;
  if (fs::is_regular_file(path, error)) return Cached::kThere;
  if (fs::is_symlink(path, error)) return Cached::kDangling;
  if (fs::exists(fs::path(folder_) / ".no_exist" / commit / file, error)) return Cached::kAbsent;
  return Cached::kUnknown;
}

bool ModelCache::has_incomplete() const {
  std::error_code error;
  for (fs::directory_iterator entry(fs::path(folder_) / "blobs", error), end;
       !error && entry != end; entry.increment(error)) {
    if (entry->path().extension() == ".incomplete") return true;
  }
  return false;
}

void ModelCache::make_folders() const {
  for (const char* name : {"blobs", "refs", "snapshots"}) make_folder(fs::path(folder_) / name);
  make_folder(fs::path(cache_) / ".locks" / name_);
}

std::string ModelCache::lock_path(const std::string& name) const {
  return (fs::path(cache_) / ".locks" / name_ / (name + ".lock")).string();
}

void ModelCache::link(const std::string& commit, const std::string& file,
                      const std::string& etag) const {
  const fs::path path = fs::path(snapshot(commit)) / file;
  make_folder(path.parent_path());
  const fs::path target = fs::path(blob(etag)).lexically_relative(path.parent_path());
  // A link cannot be replaced, but renamed over another. The process number keeps others' apart.
  const std::string temporary = fmt::format("{}.{}.link", path.string(), ::getpid());
  std::error_code error;
  fs::remove(temporary, error);
  fs::create_symlink(target, temporary, error);
  if (!error) {
    fs::rename(temporary, path, error);
    if (error) throw_io("create the link", path.string(), error.value(), kOwnCache);
    return;
  }
  // A file system without links: the snapshot then holds the contents, as huggingface_hub does it.
  const int reason = error.value();
  fs::rename(blob(etag), path, error);
  if (error) throw_io("create the link", path.string(), reason, kOwnCache);
}

void ModelCache::set_absent(const std::string& commit, const std::string& file) const {
  const fs::path path = fs::path(folder_) / ".no_exist" / commit / file;
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  // Only saves a request; an unwritten mark changes nothing else.
  std::ofstream(path, std::ios::app);
}

void ModelCache::set_revision(const std::string& revision, const std::string& commit) const {
  if (is_commit(revision)) return;
  const fs::path path = fs::path(folder_) / "refs" / revision;
  make_folder(path.parent_path());
  replace_file(path.string(), commit);
}

}  // namespace coupler::hub
