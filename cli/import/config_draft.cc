#include "cli/import/config_draft.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/durable_file.h"
#include "base/error.h"
#include "cli/text/output.h"
#include "config/schema.h"
#include "config/value.h"

namespace coupler::cli {
namespace {

namespace fs = std::filesystem;

// "backend.NAME" for "backend.NAME.offload.device"; the rest is a key of that table.
std::string table_of(const std::string& key) {
  const size_t first = key.find('.');
  const size_t second = key.find('.', first + 1);
  return key.substr(0, second == std::string::npos ? first : second);
}

std::vector<std::string> tables() {
  std::vector<std::string> order;
  for (const std::string& name : config::schema_names()) {
    if (order.empty() || order.back() != table_of(name)) order.push_back(table_of(name));
  }
  return order;
}

// Position by the schema's tables; a backend's own table follows [backend].
size_t order_of(const std::string& table) {
  static const std::vector<std::string> order = tables();
  const std::string top = table.substr(0, table.find('.'));
  const auto found = std::find(order.begin(), order.end(), top);
  return 2 * static_cast<size_t>(found - order.begin()) + (top == table ? 0 : 1);
}

// The file to replace: a link's target, not the link.
std::string target_of(const std::string& path) {
  std::error_code unreadable;
  if (!fs::is_symlink(path, unreadable)) return path;
  const fs::path target = fs::weakly_canonical(path, unreadable);
  return unreadable ? path : target.string();
}

std::string folder_of(const std::string& path) {
  const std::string folder = fs::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

// Throws an error of load_config or accept about the unfinished file, with its final name.
void require_right(const std::string& unfinished, const std::string& name,
                   const std::function<void(const config::Config&)>& accept) {
  config::ConfigRequest request;
  request.file = unfinished;
  request.environment = kNoVariables;
  try {
    const config::Config config = config::load_config(request);
    if (accept) accept(config);
  } catch (const Error& error) {
    const std::string& hint = error.detail().hint;
    std::string message = without_hint(error.what());
    for (size_t at; (at = message.find(unfinished)) != std::string::npos;)
      message.replace(at, unfinished.size(), name);
    throw Error(error.code(), message + "; nothing was written",
                {.subject = error.detail().subject, .hint = hint});
  }
}

}  // namespace

void ConfigDraft::set(const std::string& key, const config::OptionValue& value) {
  const std::string text = config::render(value);
  for (auto& [name, old] : values_) {
    if (name != key) continue;
    old = text;
    return;
  }
  values_.emplace_back(key, text);
}

const std::string* ConfigDraft::find(const std::string& key) const {
  for (const auto& [name, value] : values_) {
    if (name == key) return &value;
  }
  return nullptr;
}

void ConfigDraft::drop(const std::string& key) {
  std::erase_if(values_, [&](const auto& entry) { return entry.first == key; });
}

std::vector<std::pair<std::string, std::string>> ConfigDraft::entries() const {
  auto sorted = values_;
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return order_of(table_of(a.first)) < order_of(table_of(b.first));
  });
  return sorted;
}

std::string ConfigDraft::toml(const std::vector<std::string>& remarks) const {
  std::string text;
  for (const std::string& remark : remarks) text += "# " + wrapped(remark, 2, "# ");
  std::string table;
  for (const auto& [key, value] : entries()) {
    if (table_of(key) != table) {
      table = table_of(key);
      text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", table);
    }
    if (const config::SchemaKey* known = config::find_key(key))
      text += "# " + wrapped(known->doc, 2, "# ");
    text += fmt::format("{} = {}\n", key.substr(table.size() + 1), value);
  }
  return text;
}

void require_writable(const std::string& path, bool force) {
  std::error_code ignored;
  const fs::file_status status = fs::symlink_status(path, ignored);
  if (fs::is_directory(fs::status(path, ignored)))
    throw Error(ErrorCode::kUsage, fmt::format("{} is a folder", path),
                {.subject = path,
                 .hint = "give a file, such as " + (fs::path(path) / "train.toml").string()});
  if (fs::exists(status) && !force)
    throw Error(ErrorCode::kUsage, fmt::format("{} exists", path),
                {.subject = path, .hint = "use --force to overwrite it, or --output FILE"});
  const std::string folder = folder_of(target_of(path));
  if (::access(folder.c_str(), W_OK | X_OK) != 0)
    throw Error(ErrorCode::kIo,
                fmt::format("cannot write {}: {}: {}", path, folder, errno_message()),
                {.subject = path, .hint = "name a file in another folder with --output"});
}

void write_config(const std::string& path, const std::string& text, bool force,
                  const std::function<void(const config::Config&)>& accept) {
  require_writable(path, force);
  std::error_code ignored;
  const std::string target = target_of(path);
  const std::string unfinished = fmt::format("{}.{}.unfinished", target, getpid());
  try {
    replace_file(unfinished, text);
    require_right(unfinished, path, accept);
    const fs::file_status old = fs::status(target, ignored);
    if (fs::exists(old)) fs::permissions(unfinished, old.permissions(), ignored);
    rename_durably(unfinished, target);
  } catch (...) {
    fs::remove(unfinished, ignored);
    throw;
  }
}

}  // namespace coupler::cli
