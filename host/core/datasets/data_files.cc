#include "datasets/data_files.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace coupler::datasets {
namespace {

namespace fs = std::filesystem;

constexpr const char* kKnown =
    "the known ones are .jsonl, .ndjson, .json, .csv, .tsv, .parquet, .arrow, .feather and .ipc";

std::optional<FileFormat> known_format(const fs::path& path) {
  static const std::map<std::string, FileFormat> kFormats = {
      {".jsonl", FileFormat::kJson},  {".ndjson", FileFormat::kJson},
      {".json", FileFormat::kJson},   {".csv", FileFormat::kCsv},
      {".tsv", FileFormat::kCsv},     {".parquet", FileFormat::kParquet},
      {".arrow", FileFormat::kArrow}, {".feather", FileFormat::kArrow},
      {".ipc", FileFormat::kArrow}};
  const auto found = kFormats.find(lower(path.extension().string()));
  return found == kFormats.end() ? std::nullopt : std::optional(found->second);
}

// What Hugging Face's libraries write next to the data.
bool is_description(const std::string& name) {
  for (const std::string_view known :
       {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"}) {
    if (name == known) return true;
  }
  return false;
}

// "" if a name has no word of a split. Words are separated by anything but letters.
std::string split_named(const std::string& name) {
  static const std::map<std::string, std::string> kWords = {
      {"train", "train"},      {"training", "train"}, {"validation", "validation"},
      {"valid", "validation"}, {"val", "validation"}, {"dev", "validation"},
      {"test", "test"},        {"testing", "test"},   {"eval", "test"},
      {"evaluation", "test"}};
  std::string word;
  for (const char c : lower(name) + ".") {
    if (std::isalpha(static_cast<unsigned char>(c)) != 0) {
      word += c;
      continue;
    }
    if (const auto found = kWords.find(word); found != kWords.end()) return found->second;
    word.clear();
  }
  return "";
}

// NAME of NAME-00000-of-00002; save_to_disk calls every split's files data.
std::string split_of_shard(const std::string& stem) {
  constexpr size_t kEnding = std::string_view("-00000-of-00000").size();
  if (stem.size() <= kEnding) return "";
  const std::string ending = stem.substr(stem.size() - kEnding);
  for (size_t i = 0; i < kEnding; ++i) {
    const char wanted = "-00000-of-00000"[i];
    const bool digit = std::isdigit(static_cast<unsigned char>(ending[i])) != 0;
    if (wanted == '0' ? !digit : ending[i] != wanted) return "";
  }
  const std::string name = stem.substr(0, stem.size() - kEnding);
  return name == "data" ? "" : name;
}

// The nearest name decides: the file's, then its folder's, and so on.
std::string split_of(const fs::path& relative) {
  const std::string stem = relative.stem().string();
  if (std::string shard = split_of_shard(stem); !shard.empty()) {
    const std::string word = split_named(shard);
    return word.empty() ? shard : word;
  }
  if (std::string word = split_named(stem); !word.empty()) return word;
  for (fs::path folder = relative.parent_path(); !folder.empty(); folder = folder.parent_path()) {
    if (std::string word = split_named(folder.filename().string()); !word.empty()) return word;
  }
  return "";
}

std::vector<fs::path> files_below(const std::string& folder) {
  std::vector<fs::path> files;
  std::error_code failed;
  fs::recursive_directory_iterator entry(folder, failed), end;
  for (; !failed && entry != end; entry.increment(failed)) {
    const std::string name = entry->path().filename().string();
    const bool hidden = name.starts_with(".") || name.starts_with("__");
    std::error_code unknown;  // a dangling link
    if (entry->is_directory(unknown)) {
      if (hidden) entry.disable_recursion_pending();
    } else if (!hidden && !is_description(name) && known_format(entry->path()) &&
               entry->is_regular_file(unknown)) {
      files.push_back(entry->path());
    }
  }
  if (failed)
    throw Error(ErrorCode::kIo, fmt::format("cannot list {}: {}", folder, failed.message()),
                {.subject = folder, .hint = {}});
  return files;
}

std::vector<fs::path> files_matching(const std::string& pattern) {
  glob_t found{};
  const int status = ::glob(pattern.c_str(), 0, nullptr, &found);
  std::vector<fs::path> files(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  if (status != 0 && status != GLOB_NOMATCH)
    throw Error(ErrorCode::kIo, fmt::format("cannot search for {}: {}", pattern, errno_message()),
                {.subject = pattern, .hint = {}});
  return files;
}

// All files of a dataset have one format.
FileFormat common_format(const std::vector<fs::path>& files) {
  for (const fs::path& file : files) {
    if (format_of(file.string()) != format_of(files.front().string()))
      fail_argument(fmt::format("the files of a dataset differ in format: {} and {}",
                                files.front().string(), file.string()),
                    "path", "name those of one format by a pattern, such as data/*.jsonl");
  }
  return format_of(files.front().string());
}

}  // namespace

FileFormat format_of(const std::string& path) {
  if (const auto format = known_format(path)) return *format;
  const std::string extension = fs::path(path).extension().string();
  const bool packed = extension == ".gz" || extension == ".zst" || extension == ".bz2" ||
                      extension == ".xz" || extension == ".zip";
  fail_argument(packed ? fmt::format("{} is compressed, so that its rows cannot be found", path)
                       : fmt::format("{} has {}; {}", path,
                                     extension.empty() ? "no ending that says what it is"
                                                       : fmt::format("the unknown ending '{}'",
                                                                     for_message(extension)),
                                     kKnown),
                "path",
                packed ? "decompress it first (gunzip, unzstd), or store it as Parquet, which is "
                         "compressed inside"
                       : "rename the file by its format");
}

DataFiles find_data_files(const std::string& path) {
  std::error_code failed;
  const bool is_folder = fs::is_directory(path, failed);
  const bool is_pattern =
      !is_folder && path.find_first_of("*?[") != std::string::npos && !fs::exists(path, failed);
  std::vector<fs::path> files;
  if (is_folder) {
    files = files_below(path);
  } else if (is_pattern) {
    files = files_matching(path);
  } else {
    files = {path};
  }
  if (files.empty())
    throw Error(ErrorCode::kIo,
                is_folder ? fmt::format("the folder {} has no data files; {}", path, kKnown)
                          : fmt::format("no file matches {}", path),
                {.subject = path, .hint = "name a file, a folder or a pattern"});
  std::sort(files.begin(), files.end());

  DataFiles result{common_format(files), {}};
  if (is_folder) {
    for (const fs::path& file : files) {
      const std::string split = split_of(file.lexically_relative(path));
      if (!split.empty()) result.splits[split].push_back(file.string());
    }
  }
  if (result.splits.empty()) {
    for (const fs::path& file : files) result.splits["train"].push_back(file.string());
  }
  return result;
}

}  // namespace coupler::datasets
