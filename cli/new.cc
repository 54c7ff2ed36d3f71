// coupler new: writes the skeleton of a plugin or of a program, which builds, runs and has a test.
#include <coupler/error.h>
#include <fmt/format.h>

#include <cctype>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "commands.h"
#include "io/durable_file.h"

namespace coupler::cli {

const char kNewHelp[] = R"help(usage: coupler new plugin NAME
       coupler new project NAME

Writes a project into the new folder NAME:

  plugin   a backend in C that needs Coupler's C headers alone; as it is, for a world of one, it
           passes the matrix of `coupler check-plugin`
  project  a program in C++ with find_package(Coupler), trained on two processes by its test

  coupler new project digits && cmake -S digits -B digits/build
)help";

namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& subject, const std::string& problem,
                         const std::string& hint) {
  throw Error(ErrorCode::kUsage, "coupler new: " + problem, {.subject = subject, .hint = hint});
}

void check_name(const std::string& name) {
  const auto is_plain = [](char c) {
    return std::islower(static_cast<unsigned char>(c)) != 0 ||
           std::isdigit(static_cast<unsigned char>(c)) != 0 || c == '_';
  };
  bool plain = !name.empty() && std::isalpha(static_cast<unsigned char>(name[0])) != 0;
  for (const char c : name) plain = plain && is_plain(c);
  if (!plain)
    refuse(name, fmt::format("'{}' cannot be the name of a project", name),
           "use small letters, digits and _, a letter first");
  for (const char* taken : {"single", "auto", "gloo_cpu", "mpi", "nccl", "fsdp", "deepspeed_like",
                            "common", "coupler", "test", "all", "install", "matrix"}) {
    if (name == taken)
      refuse(name, fmt::format("'{}' is the name of something else", name), "choose another");
  }
}

fs::path template_of(const std::string& kind) {
  std::error_code unreadable;
  const fs::path self = fs::read_symlink("/proc/self/exe", unreadable);
  fs::path folder = self.parent_path() / "../share/coupler/template" / kind;
  if (fs::is_directory(folder, unreadable)) return folder;
  throw Error(
      ErrorCode::kIo, fmt::format("{} is not there", folder.string()),
      {.subject = folder.string(), .hint = "it comes with Coupler's headers: install coupler-dev"});
}

std::string replaced(std::string text, std::string_view word, const std::string& by) {
  for (size_t at = 0; (at = text.find(word, at)) != std::string::npos; at += by.size())
    text.replace(at, word.size(), by);
  return text;
}

std::string named(const std::string& text, const std::string& name) {
  return replaced(replaced(text, "c_self", name), "@NAME@", name);
}

std::string text_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in.good() && !in.eof())
    throw Error(ErrorCode::kIo, fmt::format("cannot read {}", path.string()),
                {.subject = path.string(), .hint = "install coupler-dev again"});
  return text;
}

// Into a folder beside it, which takes its name once it is whole.
void write(const fs::path& from, const std::string& name) {
  const fs::path to = fs::absolute(name), unfinished = to.string() + ".unfinished";
  fs::remove_all(unfinished);
  for (const auto& entry : fs::recursive_directory_iterator(from)) {
    const fs::path target = unfinished / named(fs::relative(entry.path(), from).string(), name);
    if (entry.is_directory()) {
      fs::create_directories(target);
    } else {
      fs::create_directories(target.parent_path());
      replace_file(target.string(), named(text_of(entry.path()), name));
    }
  }
  fs::rename(unfinished, to);
}

}  // namespace

int run_new(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  for (const std::string& word : words) {
    if (word != "--help" && word != "-h") continue;
    std::fputs(kNewHelp, stdout);
    return 0;
  }
  const std::string hint = "'coupler new --help' explains the command";
  if (words.empty() || (words[0] != "plugin" && words[0] != "project"))
    refuse(words.empty() ? "" : words[0],
           words.empty() ? "say what: a plugin or a project"
                         : fmt::format("'{}' is neither plugin nor project", words[0]),
           hint);
  if (words.size() != 2) refuse(words[0], "give it one name", hint);
  const std::string& name = words[1];
  check_name(name);
  std::error_code ignored;
  if (fs::exists(fs::symlink_status(name, ignored)))
    refuse(name, fmt::format("'{}' exists", name), "choose another name, or another folder");
  try {
    write(template_of(words[0]), name);
  } catch (const fs::filesystem_error& error) {
    throw Error(ErrorCode::kIo, fmt::format("cannot write {}: {}", name, error.code().message()),
                {.subject = name, .hint = "choose a folder where you may write"});
  }
  std::printf(
      "%s/ is there. Build and test it:\n"
      "  cd %s && cmake -S . -B build && cmake --build build && ctest --test-dir build\n",
      name.c_str(), name.c_str());
  return 0;
}

}  // namespace coupler::cli
