#include "config/config_file.h"

#include <coupler/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "config/toml_guard.h"

namespace coupler {
namespace {

constexpr const char* kDefaultFile = "train.toml";

class OpenFile {
 public:
  // Non-blocking: a named pipe without a writer must not block.
  explicit OpenFile(const std::string& path)
      : descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~OpenFile() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
};

[[noreturn]] void fail_file(const std::string& name, bool given, const std::string& why) {
  const std::string by = given ? " given by --config" : " (read because no --config was given)";
  const std::string hint =
      given ? "check the path; without --config, ./train.toml is read if it exists"
            : "fix or remove it, or name another file with --config";
  throw Error(ErrorCode::kConfig, fmt::format("cannot read '{}'{}: {}", name, by, why),
              {.subject = name, .hint = hint});
}

std::string read_all(int descriptor, const std::string& name, bool given) {
  std::string text;
  char block[16384];
  while (text.size() <= kMaxTomlBytes) {
    const ssize_t count = read(descriptor, block, sizeof block);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_file(name, given, std::strerror(errno));
    if (count == 0) break;
    text.append(block, static_cast<size_t>(count));
  }
  return text;
}

bool is_key_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '.';
}

}  // namespace

std::optional<ConfigFile> read_config_file(const std::optional<std::string>& given) {
  const std::string name = given.value_or(kDefaultFile);
  const OpenFile file(name);
  if (file.descriptor() < 0) {
    if (!given && errno == ENOENT) return std::nullopt;
    fail_file(name, given.has_value(), std::strerror(errno));
  }
  struct stat status = {};
  if (fstat(file.descriptor(), &status) != 0)
    fail_file(name, given.has_value(), std::strerror(errno));
  if (!S_ISREG(status.st_mode)) fail_file(name, given.has_value(), "not a regular file");
  return ConfigFile{name, read_all(file.descriptor(), name, given.has_value())};
}

std::pair<std::string, std::string> split_override(const std::string& text) {
  const size_t equals = text.find('=');
  const std::string key = text.substr(0, equals);
  if (equals == std::string::npos || key.empty() ||
      !std::all_of(key.begin(), key.end(), is_key_character)) {
    throw Error(
        ErrorCode::kConfig, fmt::format("-o '{}': expected key=value", text),
        {.subject = text,
         .hint = "for example -o backend.use=gloo_cpu; a program's own -o goes after '--'"});
  }
  return {key, text.substr(equals + 1)};
}

}  // namespace coupler
