// Detects which program a configuration belongs to.
#include <coupler/error.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/file_text.h"
#include "cli/config/config_import.h"

namespace coupler::cli {
namespace {

// Whether it begins as JSON, possibly after comments.
bool begins_as_json(const std::string& text) {
  size_t at = text.find_first_not_of(" \t\r\n");
  while (at != std::string::npos && text.compare(at, 2, "//") == 0) {
    at = text.find('\n', at);
    if (at != std::string::npos) at = text.find_first_not_of(" \t\r\n", at);
  }
  return at != std::string::npos && (text[at] == '{' || text.compare(at, 2, "/*") == 0);
}

// Accelerate also reads JSON, and refuses files without one of these keys.
bool is_accelerate_json(const std::string& text) {
  bool found = false;
  const auto look = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    if (depth == 1 && event == nlohmann::json::parse_event_t::key)
      found = found || value == "distributed_type" || value == "compute_environment";
    return depth < 2;
  };
  // The importer reports what is wrong with it.
  const auto root = nlohmann::json::parse(text, look, /*allow_exceptions=*/false,
                                          /*ignore_comments=*/false);
  return found && !root.is_discarded();
}

}  // namespace

Import import_text(std::string text, const std::string& where) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
  if (!valid_utf8(text) || text.find('\0') != std::string::npos)
    throw Error(
        ErrorCode::kConfig, fmt::format("{} is not valid UTF-8", where),
        {.subject = where, .hint = "give YAML of `accelerate config`, or DeepSpeed's JSON"});
  const bool is_deepspeed = begins_as_json(text) && !is_accelerate_json(text);
  return is_deepspeed ? import_deepspeed(text, where) : import_accelerate(text, where);
}

}  // namespace coupler::cli
