// coupler checkpoint: lists, shows and verifies checkpoints, and converts their weights for other
// programs.
#include <coupler/error.h>
#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "base/text.h"
#include "base/units.h"
#include "checkpoint/folder.h"
#include "cli/checkpoint/checkpoint_report.h"
#include "cli/checkpoint/find_checkpoint.h"
#include "cli/checkpoint/weight_arguments.h"
#include "cli/commands.h"
#include "cli/text/json_text.h"
#include "cli/text/secrets.h"
#include "cli/text/table.h"
#include "weights/open_weights.h"
#include "weights/write_weights.h"

namespace coupler::cli {

// coupler checkpoint convert. Single-threaded.

namespace {

const std::vector<WeightFlag> kConvertFlags = {
    {"--max-shard-size", true}, {"--model", true}, {"--key", true}};

// words[0] is "convert". Returns the exit code.
int convert_checkpoint(const std::vector<std::string>& words) {
  const WeightArguments arguments =
      read_weight_arguments("checkpoint convert", {words.begin() + 1, words.end()}, kConvertFlags);
  // A folder of Coupler checkpoints stands for the newest valid one in it.
  const std::string found =
      holds_checkpoints(arguments.source) ? find_checkpoint(arguments.source) : arguments.source;
  const WeightSource source = open_weights(found, {.model = arguments.model, .key = arguments.key});
  const WrittenWeights written = write_weights(source, arguments.target, arguments.max_shard_size);
  std::printf("%s.\n", written_text(arguments.target, written).c_str());
  return 0;
}

}  // namespace

const char kCheckpointHelp[] = R"help(usage: coupler checkpoint list [DIR] [--json]
       coupler checkpoint show [DIR | CHECKPOINT] [--json]
       coupler checkpoint verify [DIR | CHECKPOINT] [--json]
       coupler checkpoint convert SOURCE TARGET [--max-shard-size SIZE] [--model N] [--key NAME]

Lists, shows, verifies and converts checkpoints. Checkpoints are never modified, and a job may save
at the same time.

  list     list the checkpoints in DIR: what saved each one and when, its size, and whether it is
           valid: its manifest is readable, and its files are present and belong to that save
  show     print a checkpoint's manifest, its files, and the tensors in them
  verify   read every file of a checkpoint and compare it with what was saved; exit with 1 and print
           the names of the files that differ
  convert  write a model's weights as safetensors: to a single file if TARGET ends in .safetensors,
           otherwise to TARGET/model.safetensors

SOURCE is a Coupler, Accelerate or DeepSpeed checkpoint, a file written by torch.save (.bin, .pt,
.pth), a .safetensors file, or a folder or an index of them. No code in it is executed.

  --max-shard-size SIZE  split into files of at most SIZE, such as 5GB or 512MiB, with an index
  --model N              convert the N-th of several saved models, counted from 0
  --key NAME             the state dict's key in a torch.save file, such as state_dict
  --json                 print JSON instead of tables

DIR defaults to ./checkpoints. show and verify use the newest valid checkpoint of the folders in it,
checkpoint_0, checkpoint_1, …

  coupler checkpoint verify checkpoints
)help";

namespace {

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
    rows.push_back({number, std::to_string(manifest.steps), std::to_string(manifest.world),
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
  std::printf("%s: %s, all as saved.\n", found.c_str(), size_text(manifest).c_str());
  return 0;
}

[[noreturn]] void fail_usage(const std::string& message, const std::string& subject) {
  throw Error(ErrorCode::kUsage, "checkpoint: " + message,
              {.subject = subject, .hint = "see 'coupler checkpoint --help'"});
}

using Arguments = std::vector<std::string>;

// Runs a subcommand that takes at most one path.
template <int (*kRun)(const std::string& path, bool as_json)>
int with_path(const Arguments& given) {
  Arguments arguments = given;
  const std::string word = arguments[0];
  const bool as_json = std::erase(arguments, "--json") > 0;
  if (arguments.size() > 1 && arguments[1].starts_with('-'))
    fail_usage(fmt::format("{}: unknown argument '{}'", word, arguments[1]), arguments[1]);
  if (arguments.size() > 2)
    fail_usage(fmt::format("{}: unexpected second path '{}'", word, arguments[2]), arguments[2]);
  return kRun(arguments.size() == 1 ? kDefaultFolder : arguments[1], as_json);
}

struct Word {
  std::string_view name;
  int (*run)(const Arguments& arguments);  // arguments[0] is the subcommand
};

constexpr std::array kWords = {Word{"list", with_path<list>}, Word{"show", with_path<show>},
                               Word{"verify", with_path<verify>},
                               Word{"convert", convert_checkpoint}};

[[noreturn]] void fail_unknown(const std::string& name) {
  std::vector<std::string> known;
  std::string valid;
  for (const Word& word : kWords) {
    known.emplace_back(word.name);
    valid += fmt::format("{}{}", valid.empty() ? "" : ", ", word.name);
  }
  const std::string nearest = nearest_name(name, known);
  fail_usage(fmt::format("unknown subcommand '{}'{}; valid: {}", name,
                         nearest.empty() ? "" : "; did you mean '" + nearest + "'?", valid),
             name);
}

}  // namespace

int run_checkpoint(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  for (const std::string& argument : arguments) {
    if (argument == "--help" || argument == "-h") {
      std::fputs(kCheckpointHelp, stdout);
      return 0;
    }
  }
  if (arguments.empty()) {
    std::fputs(kCheckpointHelp, stderr);
    return 2;
  }
  for (const Word& word : kWords) {
    if (word.name == arguments[0]) return word.run(arguments);
  }
  fail_unknown(arguments[0]);
}

}  // namespace coupler::cli
