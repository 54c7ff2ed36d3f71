#include "weights/write_weights.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/durable_file.h"
#include "base/error.h"
#include "checkpoint/folders.h"
#include "formats/safetensors_writer.h"
#include "formats/weight_index.h"

namespace coupler::weights {
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

WeightTarget::WeightTarget(std::string folder, formats::WeightFiles files, bool alone)
    : folder_(std::move(folder)), files_(std::move(files)), alone_(alone) {
  if (alone_) refuse_folder(path(files_.files.front().name));
  checkpoint::make_folders(folder_);
  remove_unfinished();  // left by a process that was killed
}

WeightTarget::~WeightTarget() { remove_unfinished(); }

std::string WeightTarget::path(const std::string& name) const {
  return (fs::path(folder_) / name).string();
}

std::string WeightTarget::unfinished(const formats::WeightFile& file) const {
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
  for (const formats::WeightFile& file : files_.files) refuse_folder(path(file.name));
  if (indexed) {
    refuse_folder(path(index));
    write_whole(index_beside, formats::format_weight_index(index_of(files_), path(index)));
    // Files of an older save may have the same names. If the process were killed after replacing
    // some of them, the old index would present the mixture as a model.
    fs::remove(path(index));
    sync_folder(folder_);
  }
  std::set<std::string> kept;
  for (const formats::WeightFile& file : files_.files) {
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

namespace {

[[noreturn]] void refuse_target(const std::string& target, const std::string& problem,
                                const char* hint) {
  fail_argument(fmt::format("{} {}", target, problem), target, hint);
}

fs::path real(const std::string& path) {
  std::error_code error;
  fs::path absolute = fs::absolute(path.empty() ? "." : path, error).lexically_normal();
  if (!absolute.has_filename()) absolute = absolute.parent_path();  // a '/' at the end
  const fs::path result = fs::weakly_canonical(absolute, error);
  return error ? absolute : result;
}

bool is_inside(const fs::path& path, const fs::path& folder) {
  const auto [end, rest] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return end == folder.end();
}

void refuse_overlap(const WeightSource& source, const std::string& target) {
  const fs::path to = real(target);
  if (!source.folder.empty() && is_inside(to, real(source.folder)))
    refuse_target(target, fmt::format("is in {}, which is being read", source.folder),
                  "write to a path outside of it");
  for (const std::string& file : source.files) {
    // In a folder the name is replaced, even if it is a link.
    const fs::path from(file);
    const bool replaced = is_one_file(target) ? real(file) == to
                                              : real(from.parent_path().string()) == to &&
                                                    is_weight_file(from.filename().string());
    if (replaced)
      refuse_target(target, fmt::format("would replace {}, which is being read", file),
                    "write to another path");
  }
}

}  // namespace

bool is_one_file(const std::string& target) { return target.ends_with(".safetensors"); }

WrittenWeights write_weights(const WeightSource& source, const std::string& target,
                             std::optional<uint64_t> max_shard_size) {
  const bool alone = is_one_file(target);
  if (alone && max_shard_size)
    refuse_target(target, "is one file, which cannot be divided",
                  "name a folder, or omit the shard size");
  refuse_overlap(source, target);

  std::map<std::string_view, const WeightTensor*> tensors;
  std::vector<formats::SizedTensor> sizes;
  for (const WeightTensor& tensor : source.tensors) {
    tensors.emplace(tensor.name, &tensor);
    sizes.push_back({tensor.name, tensor.bytes()});
  }
  constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();
  formats::WeightFiles files = formats::divide_weights(sizes, max_shard_size.value_or(kNoLimit));
  if (alone) files.files.front().name = fs::path(target).filename().string();

  WeightTarget made(alone ? fs::path(target).parent_path().string() : target, files, alone);
  for (const formats::WeightFile& file : files.files) {
    std::vector<safetensors::TensorEntry> entries;
    safetensors::Metadata metadata{{"format", "pt"}};
    for (const std::string& name : file.tensors) {
      const WeightTensor& tensor = *tensors.at(name);
      entries.push_back({tensor.name, tensor.dtype, tensor.shape});
    }
    const std::set<std::string_view> own(file.tensors.begin(), file.tensors.end());
    for (const auto& [alias, name] : source.aliases) {
      if (own.count(name) != 0) metadata[alias] = name;
    }
    safetensors::Writer writer(made.unfinished(file), std::move(entries), metadata);
    for (const safetensors::TensorInfo& info : writer.tensors()) {
      tensors.at(info.name)->read(
          [&](const char* bytes, size_t size) { writer.write(info.name, bytes, size); });
    }
    writer.finish();
  }
  made.finish();
  return {files.files.size(), source.tensors.size(), files.total_size};
}

}  // namespace coupler::weights
