#include "hub/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/error.h"
#include "base/process.h"
#include "base/text.h"
#include "base/user_folders.h"

namespace coupler::hub {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLongestId = 96;
constexpr size_t kLongestRevision = 255;
constexpr size_t kLongestToken = 4096;

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

bool is_true(const char* variable) {
  const std::string value = lower(environment_value(variable));
  return value == "1" || value == "on" || value == "yes" || value == "true";
}

std::string cleaned(std::string token, const std::string& source) {
  std::erase_if(token, [](char c) { return c == '\r' || c == '\n'; });
  const size_t first = token.find_first_not_of(" \t");
  token = first == std::string::npos
              ? ""
              : token.substr(first, token.find_last_not_of(" \t") + 1 - first);
  const bool plain =
      std::all_of(token.begin(), token.end(), [](char c) { return c > 0x20 && c < 0x7f; });
  if (!plain || token.size() > kLongestToken) {
    fail_config(fmt::format("{} does not hold a token", source), source,
                "set it to only the token, as shown at https://huggingface.co/settings/tokens");
  }
  return token;
}

std::string token_of(const std::string& home) {
  if (is_true("HF_HUB_DISABLE_IMPLICIT_TOKEN")) return "";
  for (const char* variable : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    std::string token = cleaned(environment_value(variable), variable);
    if (!token.empty()) return token;
  }
  const std::string path =
      path_of_variables({"HF_TOKEN_PATH"}, (fs::path(home) / "token").string());
  std::ifstream in(path, std::ios::binary);
  if (!in) return "";
  std::array<char, kLongestToken + 2> text{};
  in.read(text.data(), text.size());
  return cleaned({text.data(), static_cast<size_t>(in.gcount())}, path);
}

std::chrono::milliseconds seconds_of(const char* variable, std::chrono::milliseconds otherwise) {
  const std::string text = environment_value(variable);
  if (text.empty()) return otherwise;
  const int seconds = to_number<int>(text).value_or(0);
  if (seconds < 1 || seconds > 86400) {
    fail_config(fmt::format("{} is '{}'", variable, for_message(text)), variable,
                "set it to a number of seconds");
  }
  return std::chrono::seconds(seconds);
}

bool is_id(std::string_view id) {
  if (id.empty() || id.size() > kLongestId) return false;
  if (std::count(id.begin(), id.end(), '/') > 1) return false;
  if (id.find("--") != std::string_view::npos || id.find("..") != std::string_view::npos) {
    return false;
  }
  for (const std::string& part : split(id, '/')) {
    const auto ends = [&](char c) { return c == '-' || c == '.'; };
    if (part.empty() || ends(part.front()) || ends(part.back())) return false;
    const bool plain = std::all_of(part.begin(), part.end(),
                                   [](char c) { return is_word(c) || c == '-' || c == '.'; });
    if (!plain) return false;
  }
  // Someone who mistypes a file should read about that file.
  constexpr std::array kFiles = {".git",  ".safetensors", ".bin", ".pt",   ".pth",
                                 ".json", ".toml",        ".zip", ".gguf", ".txt"};
  return std::none_of(kFiles.begin(), kFiles.end(),
                      [&](const char* end) { return id.ends_with(end); });
}

bool is_revision(std::string_view revision) {
  return is_inside(revision) && revision.size() <= kLongestRevision &&
         std::all_of(revision.begin(), revision.end(), [](char c) {
           return is_word(c) || c == '-' || c == '.' || c == '/' || c == '+';
         });
}

}  // namespace

HubSettings hub_settings() {
  const std::string home = hugging_face_home();
  HubSettings settings;
  settings.cache = path_of_variables({"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"},
                                     (fs::path(home) / "hub").string());
  settings.endpoint = environment_value("HF_ENDPOINT");
  if (settings.endpoint.empty()) settings.endpoint = "https://huggingface.co";
  while (settings.endpoint.ends_with('/')) settings.endpoint.pop_back();
  settings.token = token_of(home);
  settings.offline = is_true("HF_HUB_OFFLINE") || is_true("TRANSFORMERS_OFFLINE");
  settings.progress = !is_true("HF_HUB_DISABLE_PROGRESS_BARS");
  settings.answer_timeout = seconds_of("HF_HUB_ETAG_TIMEOUT", settings.answer_timeout);
  settings.download_timeout = seconds_of("HF_HUB_DOWNLOAD_TIMEOUT", settings.download_timeout);
  return settings;
}

std::string ModelName::text() const { return revision == "main" ? id : id + "@" + revision; }

std::optional<ModelName> parse_model_name(std::string_view text) {
  const size_t at = text.find('@');
  ModelName name{.id = std::string(text.substr(0, at))};
  if (at != std::string_view::npos) name.revision = text.substr(at + 1);
  if (!is_id(name.id) || !is_revision(name.revision)) return std::nullopt;
  return name;
}

bool is_commit(std::string_view text) {
  return text.size() == 40 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool is_inside(std::string_view path) {
  if (path.empty() || path.find('\0') != std::string_view::npos) return false;
  for (const std::string& part : split(path, '/')) {
    if (part.empty() || part == "." || part == "..") return false;
  }
  return true;
}

}  // namespace coupler::hub
