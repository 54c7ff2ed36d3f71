#include "base/user_folders.h"

#include <pwd.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <filesystem>

#include "base/process.h"

namespace coupler {

std::string home_folder() {
  std::string home = environment_value("HOME");
  if (!home.empty()) return home;
  std::array<char, 4096> buffer{};
  passwd entry{};
  passwd* found = nullptr;
  if (::getpwuid_r(::getuid(), &entry, buffer.data(), buffer.size(), &found) == 0 &&
      found != nullptr) {
    home = found->pw_dir;
  }
  return home;
}

namespace {

bool is_of_variable(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// "~/x" and "$HOME/x" as a shell expands them.
std::string expanded(const std::string& text) {
  std::string out;
  size_t i = 0;
  if (text == "~" || text.starts_with("~/")) {
    out = home_folder();
    i = 1;
  }
  while (i < text.size()) {
    if (text[i] != '$') {
      out += text[i++];
      continue;
    }
    const bool braces = i + 1 < text.size() && text[i + 1] == '{';
    const size_t begin = i + (braces ? 2 : 1);
    size_t end = begin;
    while (end < text.size() && is_of_variable(text[end])) ++end;
    const std::string name = text.substr(begin, end - begin);
    const bool closed = !braces || (end < text.size() && text[end] == '}');
    const std::string value = name.empty() || !closed ? "" : environment_value(name.c_str());
    if (value.empty()) {  // not set: stays, as in Python's expandvars
      out += text[i++];
      continue;
    }
    out += value;
    i = end + (braces ? 1 : 0);
  }
  return out;
}

}  // namespace

std::string path_of_variables(std::initializer_list<const char*> variables,
                              const std::string& otherwise) {
  for (const char* variable : variables) {
    const std::string value = environment_value(variable);
    if (!value.empty()) return expanded(value);
  }
  return otherwise;
}

std::string hugging_face_home() {
  const std::filesystem::path cache = path_of_variables({"XDG_CACHE_HOME"}, expanded("~/.cache"));
  return path_of_variables({"HF_HOME"}, (cache / "huggingface").string());
}

}  // namespace coupler
