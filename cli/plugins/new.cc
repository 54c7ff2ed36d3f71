// coupler new: writes the skeleton of a plugin or a program, which builds, runs and has a test, or
// of a notebook.
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
#include "cli/process/capture_output.h"
#include "cli/text/command.h"
#include "plugin/resolve.h"

namespace coupler::cli {

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
        name, fmt::format("'{}' is not a valid name", for_message(name)),
        "use lowercase letters, digits and _, starting with a letter; it names a new folder here");
  if (name.size() > kLongest)
    refuse_new(name, fmt::format("'{}' is longer than {} characters", for_message(name), kLongest),
               "choose a shorter name");
  if (kTaken.count(name) != 0)
    refuse_new(name, fmt::format("'{}' is a reserved name", name), "choose another name");
  for (const plugin::FoundPlugin& plugin : plugin::found_plugins(config::BackendConfig())) {
    if (plugin.name == name)
      refuse_new(name, fmt::format("'{}' is a backend already, in {}", name, plugin.path),
                 "choose another name");
  }
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
  const fs::path prefix = fs::path(own_program()).parent_path().parent_path();
  if (prefix == "/usr" || prefix == "/usr/local") return {};
  const bool plain = prefix.string().find_first_of(" \t'\"$&;()*?") == std::string::npos;
  return plain ? fmt::format(" -DCMAKE_PREFIX_PATH={}", prefix.string())
               : fmt::format(" '-DCMAKE_PREFIX_PATH={}'", prefix.string());
}

int create(const Arguments& arguments, const std::string& kind) {
  const std::string name = arguments.place(0);
  check_name(name);
  std::error_code ignored;
  if (fs::exists(fs::symlink_status(name, ignored)))
    refuse_new(name, fmt::format("'{}' already exists", name),
               "choose another name, or run it in another folder");
  try {
    write(installed_file({"../share/coupler/template/" + kind},
                         "install coupler-dev, which contains it"),
          name);
  } catch (const fs::filesystem_error& error) {
    throw Error(ErrorCode::kIo, fmt::format("cannot write {}: {}", name, error.code().message()),
                {.subject = name, .hint = "choose a folder where you may write"});
  }
  std::printf("Created %s/. ", name.c_str());
  if (kind == "notebook") {
    std::printf("Open it:\n  cd %s && jupyter lab train.ipynb\n", name.c_str());
    return 0;
  }
  std::printf(
      "Build and test it:\n"
      "  cd %s && cmake -S . -B build%s && cmake --build build && ctest --test-dir build\n",
      name.c_str(), prefix_option().c_str());
  if (kind != "project")
    std::printf("%s/README.md explains how to turn it into a backend for many processes.\n",
                name.c_str());
  return 0;
}

int new_plugin(const Arguments& arguments) {
  const std::string language = arguments.value("--lang", "c");
  if (language != "c" && language != "c++")
    refuse_new("--lang", fmt::format("--lang '{}' is neither c nor c++", for_message(language)),
               "see 'coupler new --help'");
  return create(arguments, language == "c" ? "plugin" : "plugin_cpp");
}

int new_project(const Arguments& arguments) { return create(arguments, "project"); }
int new_notebook(const Arguments& arguments) { return create(arguments, "notebook"); }

}  // namespace

Command new_command() {
  return {.name = "new",
          .summary = "create the skeleton of a plugin, a program or a notebook",
          .subcommands = {{.name = "plugin",
                           .summary =
                               "a backend in C (the default) or C++ that needs only Coupler's C "
                               "headers; as generated, it passes `coupler check-plugin --world 1`",
                           .forms = {"NAME"},
                           .options = {{"--lang c|c++", "the plugin's language (default: c)"}},
                           .run = new_plugin},
                          {.name = "project",
                           .summary =
                               "a C++ program with find_package(Coupler), whose test trains on two "
                               "processes",
                           .forms = {"NAME"},
                           .run = new_project},
                          {.name = "notebook",
                           .summary = "a Jupyter notebook whose cells are C++ and run on several "
                                      "processes",
                           .forms = {"NAME"},
                           .run = new_notebook}},
          .description = {"Creates a project in the new folder NAME."},
          .examples = {"coupler new project digits && cmake -S digits -B digits/build"}};
}

}  // namespace coupler::cli
