#include "config_draft.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "config/schema.h"
#include "config/value.h"
#include "io/durable_file.h"

namespace coupler::cli {
namespace {

namespace fs = std::filesystem;

// "backend.fsdp" of "backend.fsdp.offload.device", whose rest is a key of that table.
std::string table_of(const std::string& key) {
  const size_t first = key.find('.');
  const size_t second = key.find('.', first + 1);
  return key.substr(0, second == std::string::npos ? first : second);
}

std::vector<std::string> tables() {
  std::vector<std::string> order;
  for (const std::string& name : schema_names()) {
    if (order.empty() || order.back() != table_of(name)) order.push_back(table_of(name));
  }
  return order;
}

// By the schema's tables, a backend's own behind [backend].
size_t place_of(const std::string& table) {
  static const std::vector<std::string> order = tables();
  const std::string top = table.substr(0, table.find('.'));
  const auto found = std::find(order.begin(), order.end(), top);
  return 2 * static_cast<size_t>(found - order.begin()) + (top == table ? 0 : 1);
}

// A sentence as comment lines of at most 100 columns.
std::string comment(std::string_view text) {
  constexpr size_t kColumns = 98;
  std::string result;
  while (!text.empty()) {
    size_t end = text.size();
    if (end > kColumns) {
      end = text.rfind(' ', kColumns);
      if (end == std::string_view::npos) end = std::min(text.size(), kColumns);
    }
    result += fmt::format("# {}\n", text.substr(0, end));
    text.remove_prefix(std::min(text.size(), end + 1));
  }
  return result;
}

}  // namespace

void ConfigDraft::set(const std::string& key, const OptionValue& value) {
  const std::string text = render(value);
  for (auto& [name, old] : values_) {
    if (name != key) continue;
    old = text;
    return;
  }
  values_.emplace_back(key, text);
}

void ConfigDraft::set_list(const std::string& key, const std::vector<std::string>& values) {
  values_.emplace_back(key, render(SettingValue(values)));
}

bool ConfigDraft::has(const std::string& key) const {
  return std::any_of(values_.begin(), values_.end(),
                     [&](const auto& entry) { return entry.first == key; });
}

std::vector<std::pair<std::string, std::string>> ConfigDraft::entries() const {
  auto sorted = values_;
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return place_of(table_of(a.first)) < place_of(table_of(b.first));
  });
  return sorted;
}

std::string ConfigDraft::toml(const std::vector<std::string>& remarks) const {
  std::string text;
  for (const std::string& remark : remarks) text += comment(remark);
  std::string table;
  for (const auto& [key, value] : entries()) {
    if (table_of(key) != table) {
      table = table_of(key);
      text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", table);
    }
    if (const SchemaKey* known = find_key(key)) text += comment(known->doc);
    text += fmt::format("{} = {}\n", key.substr(table.size() + 1), value);
  }
  return text;
}

void write_config(const std::string& path, const std::string& text, bool force) {
  std::error_code ignored;
  if (!force && fs::exists(fs::symlink_status(path, ignored)))
    throw Error(ErrorCode::kUsage, fmt::format("{} exists", path),
                {.subject = path, .hint = "--force replaces it; --output names another file"});
  const std::string unfinished = fmt::format("{}.{}.unfinished", path, getpid());
  try {
    replace_file(unfinished, text);
    const char* const nothing[] = {nullptr};
    ConfigRequest request;
    request.file = unfinished;
    request.environment = nothing;
    load_config(request);
    rename_durably(unfinished, path);
  } catch (...) {
    fs::remove(unfinished, ignored);
    throw;
  }
}

}  // namespace coupler::cli
