#include "weights/weight_target.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/durable_file.h"
#include "checkpoint/make_folders.h"
#include "formats/weight_index.h"

namespace coupler {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndexName = "model.safetensors.index.json";
// The suffix of a file until all are on the disk.
constexpr std::string_view kBeside = ".new";
constexpr size_t kDigits = 5;

// Removes leading digits.
bool take_number(std::string_view& text) {
  const auto* end =
      std::find_if_not(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  const auto count = static_cast<size_t>(end - text.begin());
  text.remove_prefix(count);
  return count >= kDigits;
}

bool take(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

void refuse_folder(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error))
    throw Error(ErrorCode::kIo, fmt::format("{} is a folder, not a file", path),
                {.subject = path, .hint = "write to another path, or move the folder away"});
}

void write_whole(const std::string& path, const std::string& text) {
  DurableFile file(path);
  file.write(text.data(), text.size());
  file.finish();
}

}  // namespace

bool is_weight_file(const std::string& name) {
  if (name == "model.safetensors" || name == kIndexName) return true;
  std::string_view rest = name;
  return take(rest, "model-") && take_number(rest) && take(rest, "-of-") && take_number(rest) &&
         rest == ".safetensors";
}

WeightTarget WeightTarget::file(const std::string& path) { return {OneFile{}, path}; }

WeightTarget::WeightTarget(OneFile, const std::string& path)
    : folder_(fs::path(path).parent_path().string()), alone_(true) {
  files_.files.push_back({fs::path(path).filename().string(), {}});
  refuse_folder(path);
  checkpoint::make_folders(folder_);
  remove_unfinished();  // left by a process that was killed
}

WeightTarget::WeightTarget(std::string folder, WeightFiles files)
    : folder_(std::move(folder)), files_(std::move(files)) {
  checkpoint::make_folders(folder_);
  remove_unfinished();
}

WeightTarget::~WeightTarget() { remove_unfinished(); }

std::string WeightTarget::path(const std::string& name) const {
  return (fs::path(folder_) / name).string();
}

std::string WeightTarget::unfinished(const WeightFile& file) const {
  return path(file.name + std::string(kBeside));
}

// The names of weight files in the folder, or of unfinished ones.
std::vector<std::string> WeightTarget::left_over(bool unfinished) const {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder_.empty() ? "." : folder_, error), end;
       !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    std::string_view finished = name;
    if (unfinished) {
      if (!finished.ends_with(kBeside)) continue;
      finished.remove_suffix(kBeside.size());
    }
    if (alone_ ? finished == files_.files.front().name : is_weight_file(std::string(finished)))
      names.push_back(name);
  }
  return names;
}

void WeightTarget::remove_unfinished() const {
  std::error_code ignored;
  for (const std::string& name : left_over(true)) fs::remove(path(name), ignored);
}

void WeightTarget::finish() {
  const std::string index(kIndexName);
  const std::string index_beside = path(index + std::string(kBeside));
  const bool indexed = files_.files.size() > 1;
  // Everything that may fail (a full disk, a folder of that name) comes before the first rename.
  for (const WeightFile& file : files_.files) refuse_folder(path(file.name));
  if (indexed) {
    refuse_folder(path(index));
    write_whole(index_beside, format_weight_index(index_of(files_), path(index)));
    // Files of an older save may have the same names. If the process were killed after replacing
    // some of them, the old index would present the mixture as a model.
    fs::remove(path(index));
    sync_folder(folder_);
  }
  std::set<std::string> kept;
  for (const WeightFile& file : files_.files) {
    rename_durably(unfinished(file), path(file.name));
    kept.insert(file.name);
  }
  if (indexed) {
    rename_durably(index_beside, path(index));
    kept.insert(index);
  }
  if (alone_) return;
  for (const std::string& name : left_over(false)) {
    if (kept.count(name) == 0) fs::remove(path(name));
  }
  sync_folder(folder_);
}

}  // namespace coupler
