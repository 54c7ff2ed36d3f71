// coupler checkpoint: what checkpoints are there, what is in them, and are they as they were saved?
#include <coupler/error.h>
#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "checkpoint/folder.h"
#include "checkpoint_words.h"
#include "commands.h"
#include "config/nearest.h"
#include "io/byte_size.h"
#include "secrets.h"
#include "table.h"

namespace coupler::cli {
namespace {

constexpr const char* kHelp =
    R"(usage: coupler checkpoint list [DIR]
       coupler checkpoint show [DIR | CHECKPOINT]
       coupler checkpoint verify [DIR | CHECKPOINT]

Shows and checks checkpoints. Nothing is changed, and a job may be saving meanwhile.

  list     every checkpoint in DIR: by what and when it was saved, its size, and whether it is
           valid: its manifest can be read and its files are there
  show     what one says about itself, its files, and the tensors in them
  verify   reads every file of one and compares it with what was saved; exit code 1 and the
           files' names where one differs

DIR holds folders checkpoint_0, checkpoint_1, …; it is ./checkpoints where it is not given. show and
verify take the newest valid one in it.
)";

constexpr const char* kDefaultFolder = "checkpoints";

bool is_checkpoint(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path + "/" + checkpoint::kManifestName, error);
}

// The path itself, or the newest in it; says on standard error which are not taken.
std::string find_checkpoint(const std::string& path) {
  if (is_checkpoint(path)) return path;
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) {
    checkpoint::open_checkpoint(path);  // says what it is
    return path;
  }
  const checkpoint::Newest newest = checkpoint::newest(path);
  for (const checkpoint::Skipped& skipped : newest.skipped)
    std::fprintf(stderr, "coupler: %s is skipped: %s\n", skipped.path.c_str(),
                 printable(skipped.reason).c_str());
  if (newest.entry) return newest.entry->path;
  if (newest.skipped.empty()) checkpoint::open_checkpoint(path);
  throw Error(ErrorCode::kIo, fmt::format("{} holds no valid checkpoint", path),
              {.subject = path, .hint = "'coupler checkpoint list' says why each is not valid"});
}

int list(const std::string& path) {
  if (is_checkpoint(path)) {
    throw Error(ErrorCode::kUsage, fmt::format("{} is one checkpoint, not a folder of them", path),
                {.subject = path, .hint = fmt::format("'coupler checkpoint show {}'", path)});
  }
  const auto entries = checkpoint::list(path);
  if (entries.empty()) {
    std::printf("There are no checkpoints in %s.\n", path.c_str());
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

int show(const std::string& path) {
  const std::string found = find_checkpoint(path);
  const checkpoint::Manifest manifest = checkpoint::open_checkpoint(found);
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

int verify(const std::string& path) {
  const std::string found = find_checkpoint(path);
  const auto differences = checkpoint::verify(found);
  for (const checkpoint::Difference& difference : differences)
    std::printf("%s/%s %s\n", found.c_str(), difference.file.c_str(),
                printable(difference.reason).c_str());
  if (!differences.empty()) return 1;
  const checkpoint::Manifest manifest = checkpoint::open_checkpoint(found);
  std::printf("%s: %s, all as they were saved.\n", found.c_str(), size_text(manifest).c_str());
  return 0;
}

struct Word {
  std::string_view name;
  int (*run)(const std::string& path);
};

constexpr std::array kWords = {Word{"list", list}, Word{"show", show}, Word{"verify", verify}};

[[noreturn]] void fail_usage(const std::string& message, const std::string& subject) {
  throw Error(ErrorCode::kUsage, "checkpoint: " + message,
              {.subject = subject, .hint = "'coupler checkpoint --help' shows what there is"});
}

[[noreturn]] void fail_unknown(const std::string& name) {
  std::vector<std::string> known;
  std::string valid;
  for (const Word& word : kWords) {
    known.emplace_back(word.name);
    valid += fmt::format("{}{}", valid.empty() ? "" : ", ", word.name);
  }
  const std::string nearest = nearest_name(name, known);
  fail_usage(fmt::format("unknown word '{}'{}; valid: {}", name,
                         nearest.empty() ? "" : "; did you mean '" + nearest + "'?", valid),
             name);
}

}  // namespace

int run_checkpoint(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  for (const std::string& argument : arguments) {
    if (argument == "--help" || argument == "-h") {
      std::fputs(kHelp, stdout);
      return 0;
    }
  }
  if (arguments.empty()) {
    std::fputs(kHelp, stderr);
    return 2;
  }
  for (const Word& word : kWords) {
    if (word.name != arguments[0]) continue;
    if (arguments.size() > 1 && arguments[1].starts_with('-'))
      fail_usage(fmt::format("{}: unknown argument '{}'", word.name, arguments[1]), arguments[1]);
    if (arguments.size() > 2)
      fail_usage(fmt::format("{} takes one path, not '{}' as well", word.name, arguments[2]),
                 arguments[2]);
    return word.run(arguments.size() == 1 ? kDefaultFolder : arguments[1]);
  }
  fail_unknown(arguments[0]);
}

}  // namespace coupler::cli
