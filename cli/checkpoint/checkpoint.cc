// coupler checkpoint: lists, shows and verifies checkpoints; merge_weights.cc converts them.
#include <coupler/error.h>
#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "base/units.h"
#include "checkpoint/folder.h"
#include "checkpoint/manifest.h"
#include "cli/checkpoint/find_checkpoint.h"
#include "cli/text/command.h"
#include "cli/text/output.h"
#include "formats/safetensors_header.h"

namespace coupler::cli {

Command convert_command();  // merge_weights.cc

namespace {

using Json = nlohmann::ordered_json;

// Longer values matter only to programs, which read the manifest itself.
constexpr size_t kMaxValue = 100;

std::string value_text(const nlohmann::json& value) {
  std::string text = value.dump(-1, ' ', true);  // ASCII, so cutting never splits a character
  if (text.size() > kMaxValue) text = text.substr(0, kMaxValue) + "…";
  return text;
}

uint64_t total_bytes(const checkpoint::Manifest& manifest) {
  uint64_t bytes = 0;
  for (const auto& file : manifest.files) bytes += file.bytes;
  return bytes;
}

// "1.5 KiB in 2 files".
std::string summed_size(const checkpoint::Manifest& manifest) {
  const size_t count = manifest.files.size();
  return fmt::format("{} in {} file{}", format_byte_size(total_bytes(manifest)), count,
                     count == 1 ? "" : "s");
}

// "[2, 3]"; "[]" for a scalar.
std::string shape_text(const safetensors::TensorInfo& tensor) {
  std::string text = "[";
  for (const int64_t size : tensor.shape)
    text += fmt::format("{}{}", text.size() > 1 ? ", " : "", size);
  return text + "]";
}

// Tables; state_text is "" without state.
std::string manifest_text(const checkpoint::Manifest& manifest, const std::string& path) {
  return format_table({{"Checkpoint", path},
                       {"Number", std::to_string(manifest.number)},
                       {"Steps", std::to_string(manifest.steps)},
                       {"Processes", std::to_string(manifest.world_size)},
                       {"Backend", printable(manifest.backend)},
                       {"Plan", printable(manifest.plan)},
                       {"Saved at", manifest.saved_at},
                       {"Coupler", printable(manifest.coupler_version)},
                       {"LibTorch", printable(manifest.libtorch_version)},
                       {"Size", summed_size(manifest)}});
}

std::string state_text(const checkpoint::Manifest& manifest) {
  std::vector<std::vector<std::string>> rows = {{"STATE", "VALUE"}};
  for (const auto& [key, value] : manifest.state.items())
    rows.push_back({printable(key), value_text(value)});
  return rows.size() == 1 ? "" : format_table(rows);
}

std::string files_text(const checkpoint::Manifest& manifest) {
  std::vector<std::vector<std::string>> rows = {{"FILE", "SIZE", "SHA-256"}};
  for (const auto& file : manifest.files)
    rows.push_back({file.name, format_byte_size(file.bytes), to_hex(file.sha256)});
  return format_table(rows);
}

std::string tensors_text(const std::string& path) {
  const auto file = MappedFile::open(path);
  const auto header = safetensors::parse_header(file->data(), file->size(), path);
  std::vector<std::vector<std::string>> rows = {{"TENSOR", "DTYPE", "SHAPE", "SIZE"}};
  for (const auto& tensor : header.tensors) {
    rows.push_back({printable(tensor.name), std::string(safetensors::to_string(tensor.dtype)),
                    shape_text(tensor), format_byte_size(tensor.end - tensor.begin)});
  }
  return format_table(rows);
}

Json facts(const checkpoint::Manifest& manifest, const std::string& path) {
  return {{"path", path},
          {"number", manifest.number},
          {"valid", true},
          {"steps", manifest.steps},
          {"processes", manifest.world_size},
          {"backend", manifest.backend},
          {"plan", manifest.plan},
          {"saved_at", manifest.saved_at},
          {"coupler", manifest.coupler_version},
          {"libtorch", manifest.libtorch_version},
          {"bytes", total_bytes(manifest)}};
}

// An array with one object per checkpoint; an invalid one has "reason" in place of its contents.
Json checkpoints_json(const std::vector<checkpoint::Entry>& entries) {
  Json array = Json::array();
  for (const checkpoint::Entry& entry : entries) {
    if (entry.manifest) {
      array.push_back(facts(*entry.manifest, entry.path));
    } else {
      array.push_back({{"path", entry.path},
                       {"number", entry.number},
                       {"valid", false},
                       {"reason", entry.reason}});
    }
  }
  return array;
}

Json manifest_json(const checkpoint::Manifest& manifest, const std::string& path) {
  Json json = facts(manifest, path);
  json["state"] = manifest.state;
  json["files"] = Json::array();
  for (const auto& file : manifest.files) {
    json["files"].push_back(
        {{"name", file.name}, {"bytes", file.bytes}, {"sha256", to_hex(file.sha256)}});
  }
  return json;
}

Json differences_json(const std::string& path,
                      const std::vector<checkpoint::Difference>& differences) {
  Json json = {{"path", path}, {"as_saved", differences.empty()}, {"differences", Json::array()}};
  for (const checkpoint::Difference& difference : differences)
    json["differences"].push_back({{"file", difference.file}, {"reason", difference.reason}});
  return json;
}

Json tensors_json(const std::string& path) {
  const auto file = MappedFile::open(path);
  const auto header = safetensors::parse_header(file->data(), file->size(), path);
  Json array = Json::array();
  for (const auto& tensor : header.tensors) {
    array.push_back({{"name", tensor.name},
                     {"dtype", safetensors::to_string(tensor.dtype)},
                     {"shape", tensor.shape},
                     {"bytes", tensor.end - tensor.begin}});
  }
  return array;
}

constexpr const char* kDefaultFolder = "checkpoints";

int list(const std::string& path, bool as_json) {
  if (is_checkpoint(path)) {
    throw Error(ErrorCode::kUsage,
                fmt::format("{} is a single checkpoint, not a folder of checkpoints", path),
                {.subject = path, .hint = fmt::format("use 'coupler checkpoint show {}'", path)});
  }
  const auto entries = checkpoint::list(path);
  if (as_json) {
    std::fputs(json_text(checkpoints_json(entries)).c_str(), stdout);
    return 0;
  }
  if (entries.empty()) {
    std::printf("No checkpoints in %s.\n", path.c_str());
    return 0;
  }
  std::vector<std::vector<std::string>> rows = {
      {"NUMBER", "STEPS", "PROCESSES", "BACKEND", "SAVED AT", "SIZE", "VALID"}};
  for (const checkpoint::Entry& entry : entries) {
    const std::string number = std::to_string(entry.number);
    if (!entry.manifest) {
      rows.push_back({number, "-", "-", "-", "-", "-", "no: " + printable(entry.reason)});
      continue;
    }
    const checkpoint::Manifest& manifest = *entry.manifest;
    rows.push_back({number, std::to_string(manifest.steps), std::to_string(manifest.world_size),
                    printable(manifest.backend), manifest.saved_at,
                    format_byte_size(total_bytes(manifest)), "yes"});
  }
  std::fputs(format_table(rows).c_str(), stdout);
  return 0;
}

int show_json(const checkpoint::Manifest& manifest, const std::string& found) {
  Json json = manifest_json(manifest, found);
  int code = 0;
  for (Json& file : json["files"]) {
    const auto name = file["name"].get<std::string>();
    if (!name.ends_with(".safetensors")) continue;
    try {
      file["tensors"] = tensors_json(fmt::format("{}/{}", found, name));
    } catch (const Error& error) {
      file["error"] = error.what();
      code = 1;
    }
  }
  std::fputs(json_text(json).c_str(), stdout);
  return code;
}

int show(const std::string& path, bool as_json) {
  const std::string found = find_checkpoint(path);
  const checkpoint::Manifest manifest = checkpoint::open_checkpoint(found);
  if (as_json) return show_json(manifest, found);
  std::string text = manifest_text(manifest, found);
  if (const std::string state = state_text(manifest); !state.empty()) text += "\n" + state;
  text += "\n" + files_text(manifest);
  int code = 0;
  for (const auto& file : manifest.files) {
    if (!file.name.ends_with(".safetensors")) continue;
    text += fmt::format("\n{}\n", file.name);
    try {
      text += tensors_text(found + "/" + file.name);
    } catch (const Error& error) {
      text += fmt::format("cannot be read: {}\n", error.what());
      code = 1;
    }
  }
  std::fputs(text.c_str(), stdout);
  return code;
}

int verify(const std::string& path, bool as_json) {
  const std::string found = find_checkpoint(path);
  const auto differences = checkpoint::verify(found);
  if (as_json) {
    std::fputs(json_text(differences_json(found, differences)).c_str(), stdout);
    return differences.empty() ? 0 : 1;
  }
  for (const checkpoint::Difference& difference : differences)
    std::printf("%s/%s %s\n", found.c_str(), difference.file.c_str(),
                printable(difference.reason).c_str());
  if (!differences.empty()) return 1;
  const checkpoint::Manifest manifest = checkpoint::open_checkpoint(found);
  std::printf("%s: %s, all as saved.\n", found.c_str(), summed_size(manifest).c_str());
  return 0;
}

// Runs a subcommand that takes at most one path.
template <int (*kRun)(const std::string& path, bool as_json)>
int with_path(const Arguments& arguments) {
  return kRun(arguments.place(0, kDefaultFolder), arguments.has("--json"));
}

}  // namespace

Command checkpoint_command() {
  constexpr Option kJson = {"--json", "print JSON instead of tables"};
  return {
      .name = "checkpoint",
      .summary = "list, show, verify or convert checkpoints",
      .subcommands =
          {{.name = "list",
            .summary = "list the checkpoints in DIR: what saved each one and when, its size, and "
                       "whether it is valid: its manifest is readable, and its files are present "
                       "and belong to that save",
            .forms = {"[DIR]"},
            .options = {kJson},
            .run = with_path<list>},
           {.name = "show",
            .summary = "print a checkpoint's manifest, its files, and the tensors in them",
            .forms = {"[DIR | CHECKPOINT]"},
            .options = {kJson},
            .run = with_path<show>},
           {.name = "verify",
            .summary = "read every file of a checkpoint and compare it with what was saved; exit "
                       "with 1 and print the names of the files that differ",
            .forms = {"[DIR | CHECKPOINT]"},
            .options = {kJson},
            .run = with_path<verify>},
           convert_command()},
      .description = {"Lists, shows, verifies and converts checkpoints. Checkpoints are never "
                      "modified, and a job may save at the same time."},
      .notes = {"DIR defaults to ./checkpoints. show and verify use the newest valid checkpoint of "
                "the folders in it, checkpoint_0, checkpoint_1, …",
                "SOURCE is a Coupler, Accelerate or DeepSpeed checkpoint, a file written by "
                "torch.save (.bin, .pt, .pth), a .safetensors file, a folder or an index of "
                "them, or a model's name on the Hugging Face Hub, such as gpt2, which is "
                "downloaded unless the cache has it. No code in it is executed."},
      .examples = {"coupler checkpoint verify checkpoints"}};
}

}  // namespace coupler::cli
