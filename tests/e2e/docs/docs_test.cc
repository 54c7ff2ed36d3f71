// What docs/configuration.md says is what the schema and the backends say, and every TOML block and
// -o of the documentation loads.
#include <coupler/distributed_backend.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>
#include <vector>

#include "config/config.h"
#include "config/schema.h"
#include "config/value.h"
#include "plugin/plugin.h"

namespace coupler {
namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<fs::path> pages() {
  const fs::path root = COUPLER_SOURCE_DIR;
  std::vector<fs::path> result = {root / "README.md", root / "CONTRIBUTING.md",
                                  root / "SECURITY.md"};
  for (const char* folder : {"api", "bench", "docs", "examples"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      if (entry.path().extension() == ".md") result.push_back(entry.path());
    }
  }
  return result;
}

std::vector<std::string> matches(const std::string& text, const std::string& pattern) {
  const std::regex expression(pattern);
  std::vector<std::string> result;
  for (std::sregex_iterator match(text.begin(), text.end(), expression), end; match != end;
       ++match) {
    result.push_back((*match)[1]);
  }
  return result;
}

// The text of each fenced block of a language.
std::vector<std::string> blocks(const std::string& page, const std::string& language) {
  return matches(page, "```" + language + "\n([^`]*)```");
}

// "duration", without the examples behind it.
std::string type_name(ValueType type) {
  const std::string text(to_string(type));
  return text.substr(0, text.find(" ("));
}

void expect_row(const std::string& page, const std::string& row) {
  EXPECT_NE(page.find(row + "\n"), std::string::npos)
      << "docs/configuration.md lacks or misstates this row:\n"
      << row;
}

std::string default_of(const db_option& option) {
  switch (option.type) {
    case DB_OPTION_STRING:
      return render(OptionValue(std::string(option.string)));
    case DB_OPTION_I64:
      return render(OptionValue(option.i64));
    case DB_OPTION_F64:
      return render(OptionValue(option.f64));
    default:
      return render(OptionValue(option.boolean != 0));
  }
}

// The keys that its own table may have; nothing where the backend is not part of this build.
struct BackendOptions {
  std::vector<const db_option*> own;
  bool needs_base = false;

  bool has(const std::string& key) const {
    // What a wrapper stands on is the host's option: no wrapper lists it.
    if (needs_base && key == "base") return true;
    return std::any_of(own.begin(), own.end(),
                       [&](const db_option* option) { return key == option->key; });
  }
};

BackendOptions options_of(const std::string& plugin) {
  const fs::path path =
      fs::path(COUPLER_BINARY_DIR) / fmt::format("lib/coupler/libcoupler_{}.so", plugin);
  if (!fs::exists(path)) return {};
  BackendConfig backend;
  backend.use = path.string();
  const DistributedBackend& table = Plugin::load(backend).table();
  uint64_t count = 0;
  const db_option* const* options = table.default_options(&count);
  return {{options, options + count}, (table.capabilities & DB_CAP_NEEDS_BASE) != 0};
}

Config load_alone(ConfigRequest request) {
  static const char* const kEmpty[] = {nullptr};
  request.environment = kEmpty;
  return load_config(request);
}

TEST(ConfigurationPage, EveryKey_HasItsRowAndNoOtherHasOne) {
  const std::string page = read(fs::path(COUPLER_SOURCE_DIR) / "docs/configuration.md");
  const Config defaults;
  for (const SchemaKey& key : schema()) {
    std::string meaning(key.doc);
    if (!key.constraint.empty()) meaning += fmt::format(" Must be {}.", key.constraint);
    expect_row(page, fmt::format("| `{}` | {} | `{}` | `{}` | {} |", key.name, type_name(key.type),
                                 render(key.get(defaults)), environment_name(key.name), meaning));
  }
  for (const std::string& name :
       matches(page, R"(\n\| `((?:backend|training|launch)\.[^`.]*)` \|)")) {
    EXPECT_NE(find_key(name), nullptr) << "docs/configuration.md describes " << name;
  }
}

TEST(ConfigurationPage, EveryOptionOfABackend_HasItsRowAndNoOtherHasOne) {
  const std::string page = read(fs::path(COUPLER_SOURCE_DIR) / "docs/configuration.md");
  for (const std::string plugin : {"gloo_cpu", "mpi", "nccl", "fsdp", "deepspeed_like"}) {
    const std::vector<const db_option*> options = options_of(plugin).own;
    if (options.empty()) continue;
    const std::string row = R"(\n(\| `backend\.)" + plugin + R"(\.[^`]*` \|))";
    EXPECT_EQ(matches(page, row).size(), options.size()) << plugin;
    for (const db_option* option : options) {
      expect_row(page, fmt::format("| `backend.{}.{}` | `{}` | {} |", plugin, option->key,
                                   default_of(*option), option->description));
    }
  }
}

TEST(Documentation, EveryTomlBlock_LoadsAndNamesOptionsThatExist) {
  const fs::path file = fs::temp_directory_path() / fmt::format("coupler-docs-{}.toml", getpid());
  size_t loaded = 0;
  for (const fs::path& path : pages()) {
    for (const std::string& block : blocks(read(path), "toml")) {
      std::ofstream(file) << block;
      Config config;
      EXPECT_NO_THROW(config = load_alone({.file = file.string()})) << path << ":\n" << block;
      ++loaded;
      for (const auto& [plugin, given] : config.backend.options) {
        const BackendOptions known = options_of(plugin);
        for (const PluginOption& option : given) {
          EXPECT_TRUE(known.has(option.key) || known.own.empty())
              << path << ": " << plugin << "." << option.key;
        }
      }
    }
  }
  fs::remove(file);
  EXPECT_GT(loaded, 0U);
}

TEST(Documentation, EveryOverrideInACommand_IsOne) {
  size_t read_overrides = 0;
  for (const fs::path& path : pages()) {
    for (const std::string& block : blocks(read(path), "sh")) {
      for (const std::string& override_text : matches(block, R"( -o '?([^\s']+))")) {
        EXPECT_NO_THROW(load_alone({.overrides = {override_text}}))
            << path << ": " << override_text;
        ++read_overrides;
      }
    }
  }
  EXPECT_GT(read_overrides, 0U);
}

}  // namespace
}  // namespace coupler
