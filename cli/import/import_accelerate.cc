// Reads what `accelerate config` writes: YAML, in which a few lines can expand to any amount of
// text.
#include <coupler/error.h>
#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "cli/import/accelerate_words.h"
#include "cli/import/config_import.h"

namespace coupler::cli {
namespace {

// Aliases can repeat parts of the file or contain themselves, so the expanded size is bounded.
constexpr size_t kMaxEntries = 10'000;
constexpr size_t kMaxTextBytes = size_t{1} << 20;

class Flattener {
 public:
  explicit Flattener(const std::string& where) : where_(where) {}

  void take(const std::string& path, const YAML::Node& node, int level) {
    count(node, level);
    if (!node.IsMap()) {
      entries_.emplace_back(path, text_of(node, level));
      return;
    }
    for (const auto& entry : node) {
      if (!entry.first.IsScalar()) fail(entry.first, "a key is not a string");
      const std::string& key = entry.first.Scalar();
      const bool merges = key == "<<";  // merges the keys of another table into this one
      take(merges         ? path
           : path.empty() ? key
                          : fmt::format("{}.{}", path, key),
           entry.second, level + 1);
    }
  }
  const ImportEntries& entries() const { return entries_; }

 private:
  std::string text_of(const YAML::Node& node, int level) {
    count(node, level);
    if (node.IsScalar()) {
      text_ += node.Scalar().size();
      if (text_ > kMaxTextBytes)
        fail(node, fmt::format("more than {} bytes of values", kMaxTextBytes));
      return node.Scalar();
    }
    if (node.IsNull()) return "null";
    std::string text;
    if (node.IsSequence()) {
      for (const auto& item : node) text += (text.empty() ? "" : ",") + text_of(item, level + 1);
      return text;
    }
    for (const auto& entry : node) {
      text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", text_of(entry.first, level + 1),
                          text_of(entry.second, level + 1));
    }
    return "{" + text + "}";
  }

  void count(const YAML::Node& node, int level) {
    if (level > kMaxLevels) fail(node, fmt::format("more than {} levels of tables", kMaxLevels));
    if (++seen_ > kMaxEntries) fail(node, fmt::format("more than {} values", kMaxEntries));
  }

  [[noreturn]] void fail(const YAML::Node& node, const std::string& problem) const {
    const YAML::Mark mark = node.Mark();
    throw Error(ErrorCode::kConfig,
                fmt::format("{}:{}:{}: {}", where_, mark.line + 1, mark.column + 1, problem),
                {.subject = where_, .hint = "give a file that `accelerate config` has written"});
  }

  const std::string& where_;
  ImportEntries entries_;
  size_t seen_ = 0;  // values
  size_t text_ = 0;  // bytes
};

}  // namespace

Import import_accelerate(const std::string& text, const std::string& where) {
  YAML::Node root;
  try {
    root = YAML::Load(text);
  } catch (const YAML::Exception& error) {
    throw Error(ErrorCode::kConfig,
                fmt::format("{}:{}:{}: invalid YAML: {}", where, error.mark.line + 1,
                            error.mark.column + 1, error.msg),
                {.subject = where, .hint = "give a file that `accelerate config` has written"});
  }
  if (!root.IsMap())
    throw Error(ErrorCode::kConfig, fmt::format("{}: it contains no keys and values", where),
                {.subject = where, .hint = "give a file that `accelerate config` has written"});
  Flattener flattener(where);
  flattener.take("", root, 0);
  Import result;
  apply_rules(accelerate_rules(), accelerate_table_answer, flattener.entries(), result);
  resolve_import(result);
  return result;
}

}  // namespace coupler::cli
