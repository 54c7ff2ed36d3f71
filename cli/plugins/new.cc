// coupler new: writes the skeleton of a plugin or a program, which builds, runs and has a test.
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/durable_file.h"
#include "base/text.h"
#include "cli/commands.h"
#include "plugin/resolve.h"

namespace coupler::cli {

const char kNewHelp[] = R"help(usage: coupler new plugin NAME [--lang c|c++]
       coupler new project NAME

Creates a project in the new folder NAME:

  plugin   a backend in C (the default) or C++ that needs only Coupler's C headers; as generated, it
           passes `coupler check-plugin --world 1`
  project  a C++ program with find_package(Coupler), whose test trains on two processes

  --lang c|c++  the plugin's language (default: c)

  coupler new project digits && cmake -S digits -B digits/build
)help";

namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse_new(const std::string& subject, const std::string& problem,
                             const std::string& hint) {
  throw Error(ErrorCode::kUsage, "coupler new: " + problem, {.subject = subject, .hint = hint});
}

// Names of CMake targets, of libraries that the skeletons link, and of what is not a plugin.
const std::set<std::string> kTaken = {
    "all",          "auto",    "clean",      "common",        "coupler",
    "ctest",        "depend",  "fmt",        "help",          "install",
    "matrix",       "package", "single",     "test",          "torch",
    "edit_cache",   "c10",     "preinstall", "rebuild_cache", "package_source",
    "coupler_torch"};

void check_name(const std::string& name) {
  constexpr size_t kLongest = 64;
  const auto is_plain = [](unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  };
  if (name.empty() || name[0] < 'a' || name[0] > 'z' ||
      !std::all_of(name.begin(), name.end(), is_plain))
    refuse_new(
        name, fmt::format("'{}' is not a valid name", shown(name)),
        "use lowercase letters, digits and _, starting with a letter; it names a new folder here");
  if (name.size() > kLongest)
    refuse_new(name, fmt::format("'{}' is longer than {} characters", shown(name), kLongest),
               "choose a shorter name");
  if (kTaken.count(name) != 0)
    refuse_new(name, fmt::format("'{}' is a reserved name", name), "choose another name");
  for (const FoundPlugin& plugin : found_plugins(BackendConfig())) {
    if (plugin.name == name)
      refuse_new(name, fmt::format("'{}' is a backend already, in {}", name, plugin.path),
                 "choose another name");
  }
}

fs::path template_of(const std::string& kind) {
  std::error_code unreadable;
  const fs::path self = fs::read_symlink("/proc/self/exe", unreadable);
  fs::path folder = self.parent_path() / "../share/coupler/template" / kind;
  if (fs::is_directory(folder, unreadable)) return folder;
  throw Error(ErrorCode::kIo, fmt::format("{} does not exist", folder.string()),
              {.subject = folder.string(), .hint = "install coupler-dev, which contains it"});
}

std::string replaced(std::string text, std::string_view word, const std::string& by) {
  for (size_t at = 0; (at = text.find(word, at)) != std::string::npos; at += by.size())
    text.replace(at, word.size(), by);
  return text;
}

std::string named(const std::string& text, const std::string& name) {
  return replaced(replaced(replaced(text, "cpp_self", name), "c_self", name), "@NAME@", name);
}

std::string text_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in.good() && !in.eof())
    throw Error(ErrorCode::kIo, fmt::format("cannot read {}", path.string()),
                {.subject = path.string(), .hint = "reinstall coupler-dev"});
  return text;
}

void copy_named(const fs::path& from, const fs::path& to, const std::string& name) {
  for (const auto& entry : fs::recursive_directory_iterator(from)) {
    const fs::path target = to / named(fs::relative(entry.path(), from).string(), name);
    if (entry.is_directory()) {
      fs::create_directories(target);
    } else {
      fs::create_directories(target.parent_path());
      replace_file(target.string(), named(text_of(entry.path()), name));
    }
  }
}

// Writes into a private folder in the same place, which is renamed once it is complete.
void write(const fs::path& from, const std::string& name) {
  std::string unfinished = name + ".unfinished-XXXXXX";
  if (::mkdtemp(unfinished.data()) == nullptr)
    throw fs::filesystem_error("mkdtemp", std::error_code(errno, std::generic_category()));
  try {
    copy_named(from, unfinished, name);
    fs::permissions(unfinished,
                    fs::perms::group_read | fs::perms::group_exec | fs::perms::others_read |
                        fs::perms::others_exec,
                    fs::perm_options::add);
    fs::rename(unfinished, name);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(unfinished, ignored);
    throw;
  }
}

// -DCMAKE_PREFIX_PATH=… if CMake does not look there by itself.
std::string prefix_option() {
  std::error_code unreadable;
  const fs::path self = fs::read_symlink("/proc/self/exe", unreadable);
  const fs::path prefix = self.parent_path().parent_path();
  if (prefix == "/usr" || prefix == "/usr/local") return {};
  const bool plain = prefix.string().find_first_of(" \t'\"$&;()*?") == std::string::npos;
  return plain ? fmt::format(" -DCMAKE_PREFIX_PATH={}", prefix.string())
               : fmt::format(" '-DCMAKE_PREFIX_PATH={}'", prefix.string());
}

struct Words {
  std::string kind, name, language = "c";
};

Words read_words(const std::vector<std::string>& given) {
  const std::string hint = "see 'coupler new --help'";
  Words words;
  std::vector<std::string> plain;
  bool has_language = false;
  for (size_t i = 0; i < given.size(); ++i) {
    const std::string& word = given[i];
    const bool attached = word.starts_with("--lang=");
    if (word != "--lang" && !attached) {
      plain.push_back(word);
      continue;
    }
    has_language = true;
    words.language = attached ? word.substr(7) : i + 1 < given.size() ? given[++i] : "";
    if (words.language != "c" && words.language != "c++")
      refuse_new("--lang", fmt::format("--lang '{}' is neither c nor c++", shown(words.language)),
                 hint);
  }
  if (plain.empty()) refuse_new("", "plugin or project is missing", hint);
  words.kind = plain[0];
  if (words.kind != "plugin" && words.kind != "project")
    refuse_new(words.kind, fmt::format("'{}' is neither plugin nor project", shown(words.kind)),
               hint);
  if (plain.size() != 2) refuse_new(words.kind, "exactly one NAME is needed", hint);
  if (has_language && words.kind == "project" && words.language == "c")
    refuse_new("--lang", "a project is always in C++", hint);
  words.name = plain[1];
  return words;
}

}  // namespace

int run_new(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  for (const std::string& word : words) {
    if (word != "--help" && word != "-h") continue;
    std::fputs(kNewHelp, stdout);
    return 0;
  }
  const auto [kind, name, language] = read_words(words);
  check_name(name);
  std::error_code ignored;
  if (fs::exists(fs::symlink_status(name, ignored)))
    refuse_new(name, fmt::format("'{}' already exists", name),
               "choose another name, or run it in another folder");
  try {
    write(template_of(kind == "plugin" && language == "c++" ? "plugin_cpp" : kind), name);
  } catch (const fs::filesystem_error& error) {
    throw Error(ErrorCode::kIo, fmt::format("cannot write {}: {}", name, error.code().message()),
                {.subject = name, .hint = "choose a folder where you may write"});
  }
  std::printf(
      "Created %s/. Build and test it:\n"
      "  cd %s && cmake -S . -B build%s && cmake --build build && ctest --test-dir build\n",
      name.c_str(), name.c_str(), prefix_option().c_str());
  if (kind == "plugin")
    std::printf("%s/README.md explains how to turn it into a backend for many processes.\n",
                name.c_str());
  return 0;
}

}  // namespace coupler::cli
