#include "checkpoint/folder.h"

#include <coupler/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/durable_file.h"
#include "base/error.h"
#include "base/file_descriptor.h"
#include "base/mapped_file.h"
#include "base/text.h"
#include "checkpoint/folders.h"
#include "checkpoint/manifest.h"
#include "checkpoint/names.h"
#include "formats/safetensors_header.h"

namespace coupler::checkpoint {
namespace {

namespace fs = std::filesystem;

bool has(const fs::path& folder, const char* name) {
  std::error_code error;
  return fs::exists(folder / name, error);
}

// DeepSpeed writes a folder per step, which holds one of these files except with ZeRO 3.
bool is_deepspeed_step(const fs::path& folder) {
  return has(folder, "mp_rank_00_model_states.pt") ||
         has(folder, "zero_pp_rank_0_mp_rank_00_model_states.pt");
}

}  // namespace

std::string foreign_layout(const std::string& folder) {
  if (is_deepspeed_step(folder))
    return "a DeepSpeed checkpoint (it contains …mp_rank_00_model_states.pt)";
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with("global_step") && is_deepspeed_step(entry->path()))
      return fmt::format("a folder of DeepSpeed checkpoints (it contains {})", name);
  }
  // Accelerate pickles the optimizer; with sharding it writes folders instead.
  constexpr std::array kModels = {"model.safetensors", "model.safetensors.index.json",
                                  "pytorch_model.bin", "pytorch_model.bin.index.json"};
  for (const char* model : kModels) {
    if (!has(folder, model)) continue;
    for (const char* other : {"optimizer.bin", "random_states_0.pkl"}) {
      if (has(folder, other))
        return fmt::format("an Accelerate checkpoint ({} next to {})", model, other);
    }
  }
  if (has(folder, "pytorch_model_fsdp_0") || has(folder, "optimizer_0"))
    return "an Accelerate checkpoint with FSDP (it contains pytorch_model_fsdp_0 or optimizer_0)";
  return "";
}

std::string file_problem(const std::string& folder, const Manifest& manifest,
                         const ManifestFile& file, bool follow_link) {
  struct stat status {};
  const std::string path = folder + "/" + file.name;
  if ((follow_link ? ::stat(path.c_str(), &status) : ::lstat(path.c_str(), &status)) != 0)
    return errno == ENOENT ? "is missing" : std::generic_category().message(errno);
  if (!S_ISREG(status.st_mode)) return "is not a regular file";
  if (static_cast<uint64_t>(status.st_size) != file.bytes)
    return fmt::format("has {} bytes, but {} were written", status.st_size, file.bytes);
  if (file.rank < 0) return "";
  try {
    const auto mapped = MappedFile::open(path);
    const auto header = safetensors::parse_header(mapped->data(), mapped->size(), path);
    return piece_problem(header.metadata, manifest, file);
  } catch (const Error& error) {
    return "cannot be read as a piece: " + without_hint(error.what());
  }
}

namespace {

// Reads a little past the size limit at most, so that parse() rejects a larger file.
std::string read_text(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) throw_io("open", path, errno);
  std::string text;
  while (text.size() <= kMaxManifestBytes) {
    constexpr size_t kChunk = size_t{1} << 16;
    const size_t before = text.size();
    text.resize(before + kChunk);
    const ssize_t count = ::read(file.get(), text.data() + before, kChunk);
    const int error = errno;
    text.resize(before + (count > 0 ? static_cast<size_t>(count) : 0));
    if (count < 0 && error == EINTR) continue;
    if (count < 0) throw_io("read", path, error);
    if (count == 0) break;
  }
  return text;
}

[[noreturn]] void refuse_folder(const std::string& path, const std::string& rule,
                                std::string hint) {
  throw Error(ErrorCode::kIo, fmt::format("{} {}", path, rule),
              {.subject = path, .hint = std::move(hint)});
}

// The hint if a folder has no manifest.
std::string what_else(const std::string& path) {
  const auto entry = newest(path).entry;
  return entry ? fmt::format("it is a folder of checkpoints; the newest is {}", entry->path)
               : "name a folder checkpoint_{n}, or the folder that contains them";
}

void check_folder(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) refuse_folder(path, "does not exist", "no checkpoint was saved there yet");
    throw_io("open", path, errno);
  }
  if (!S_ISDIR(status.st_mode)) refuse_folder(path, "is a file, not a folder", "name the folder");
}

// A folder found in a listing is not searched further, so that cyclic links do no harm.
enum class Asked { kByName, kAmongOthers };

Manifest read_manifest(const std::string& path, Asked asked) {
  check_folder(path);
  const std::string file = path + "/" + kManifestName;
  struct stat status {};
  if (::stat(file.c_str(), &status) != 0) {
    if (errno != ENOENT) throw_io("open", file, errno);
    const std::string foreign = foreign_layout(path);
    if (!foreign.empty()) refuse_folder(path, "is " + foreign, kForeignHint);
    refuse_folder(
        path,
        fmt::format("has no {}: it is an unfinished checkpoint or something else", kManifestName),
        asked == Asked::kByName ? what_else(path) : "");
  }
  return parse(read_text(file), file);
}

Manifest open(const std::string& path, Asked asked) {
  Manifest manifest = read_manifest(path, asked);
  for (const ManifestFile& file : manifest.files) {
    const std::string reason = file_problem(path, manifest, file);
    if (!reason.empty())
      refuse_folder(path + "/" + file.name, reason,
                    "use another checkpoint; 'coupler checkpoint list' shows which are valid");
  }
  return manifest;
}

// nullopt if it was removed in the meantime.
std::optional<Entry> examine(int64_t number, const std::string& path) {
  Entry entry{.number = number, .path = path, .manifest = {}, .reason = {}};
  try {
    Manifest manifest = open(path, Asked::kAmongOthers);
    if (manifest.number == number)
      entry.manifest = std::move(manifest);
    else
      entry.reason = fmt::format("was renamed: its manifest says checkpoint_{}", manifest.number);
  } catch (const Error& error) {
    struct stat status {};
    if (::lstat(path.c_str(), &status) != 0 && errno == ENOENT) return std::nullopt;
    entry.reason = without_hint(error.what());
    // The message begins with the path, which is reported separately.
    if (entry.reason.starts_with(path)) entry.reason.erase(0, path.size());
    entry.reason.erase(0, entry.reason.find_first_not_of(" /:"));
  }
  return entry;
}

// The entries named checkpoint_{n}, sorted by number.
std::vector<std::pair<int64_t, std::string>> numbered(const std::string& folder) {
  check_folder(folder);
  std::vector<std::pair<int64_t, std::string>> found;
  for (const std::string& entry : names_in(folder)) {
    const auto name = read_name(entry);
    if (name && name->kind == NameKind::kCommitted)
      found.emplace_back(name->number, (fs::path(folder) / entry).string());
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<Difference> compare(const std::string& path, const Manifest& manifest,
                                const std::vector<std::string>* only) {
  std::vector<Difference> differences;
  for (const ManifestFile& file : manifest.files) {
    if (only != nullptr && std::find(only->begin(), only->end(), file.name) == only->end())
      continue;
    std::string reason = file_problem(path, manifest, file);
    if (reason.empty()) {
      try {
        const WrittenFile found = hash_file(path + "/" + file.name);
        if (found.bytes != file.bytes || found.sha256 != file.sha256)
          reason = fmt::format("differs: its SHA-256 is {}, but {} was written",
                               to_hex(found.sha256), to_hex(file.sha256));
      } catch (const Error& error) {
        reason = error.what();
      }
    }
    if (!reason.empty()) differences.push_back({file.name, std::move(reason)});
  }
  return differences;
}

}  // namespace

std::vector<Entry> list(const std::string& folder) {
  std::vector<Entry> entries;
  for (const auto& [number, path] : numbered(folder)) {
    if (auto entry = examine(number, path)) entries.push_back(std::move(*entry));
  }
  return entries;
}

Newest newest(const std::string& folder) {
  Newest result;
  const auto found = numbered(folder);
  for (auto item = found.rbegin(); item != found.rend() && !result.entry; ++item) {
    auto entry = examine(item->first, item->second);
    if (!entry) continue;
    if (entry->manifest)
      result.entry = std::move(entry);
    else
      result.skipped.push_back(std::move(*entry));
  }
  return result;
}

Manifest open_checkpoint(const std::string& path) { return open(path, Asked::kByName); }

std::vector<Difference> verify(const std::string& path) {
  return compare(path, read_manifest(path, Asked::kByName), nullptr);
}

std::vector<Difference> verify(const std::string& path, const std::vector<std::string>& files) {
  const Manifest manifest = read_manifest(path, Asked::kByName);
  for (const std::string& name : files) {
    if (std::none_of(manifest.files.begin(), manifest.files.end(),
                     [&](const ManifestFile& file) { return file.name == name; }))
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{} has no file '{}'", path, for_message(name)),
                  {.subject = name, .hint = "its manifest.json lists its files"});
  }
  return compare(path, manifest, &files);
}

void refuse_checkpoint(const std::string& path, const std::string& problem) {
  throw Error(ErrorCode::kIo, fmt::format("{}: {}", path, problem),
              {.subject = path, .hint = "use another checkpoint"});
}

}  // namespace coupler::checkpoint
