// Every TOML block and -o in the documentation loads and names options that the backends have.
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
#include "plugin/bases.h"
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

// The texts of all fenced blocks of a language.
std::vector<std::string> blocks(const std::string& page, const std::string& language) {
  return matches(page, "```" + language + "\n([^`]*)```");
}

// The keys that a backend's own table may have; nothing if the backend is not in this build.
struct BackendOptions {
  std::vector<const db_option*> own;
  std::vector<plugin::WantedBase> bases;

  bool has(const std::string& key) const {
    // What names a wrapper's bases are options of the host, so no wrapper lists them.
    if (std::any_of(bases.begin(), bases.end(),
                    [&](const plugin::WantedBase& base) { return key == base.option; })) {
      return true;
    }
    return std::any_of(own.begin(), own.end(),
                       [&](const db_option* option) { return key == option->key; });
  }
};

BackendOptions options_of_plugin(const std::string& plugin) {
  const fs::path path =
      fs::path(COUPLER_BINARY_DIR) / fmt::format("lib/coupler/libcoupler_{}.so", plugin);
  if (!fs::exists(path)) return {};
  config::BackendConfig backend;
  backend.use = path.string();
  const plugin::Plugin loaded = plugin::Plugin::load(backend);
  const DistributedBackend& table = loaded.table();
  uint64_t count = 0;
  const db_option* const* options = table.default_options(&count);
  return {{options, options + count}, plugin::wanted_bases(table)};
}

config::Config load_alone(config::ConfigRequest request) {
  static const char* const kEmpty[] = {nullptr};
  request.environment = kEmpty;
  return config::load_config(request);
}

TEST(Documentation, EveryTomlBlock_LoadsAndNamesOptionsThatExist) {
  const fs::path file = fs::temp_directory_path() / fmt::format("coupler-docs-{}.toml", getpid());
  size_t loaded = 0;
  for (const fs::path& path : pages()) {
    for (const std::string& block : blocks(read(path), "toml")) {
      std::ofstream(file) << block;
      config::Config config;
      EXPECT_NO_THROW(config = load_alone({.file = file.string()})) << path << ":\n" << block;
      ++loaded;
      for (const auto& [plugin, given] : config.backend.options) {
        const BackendOptions known = options_of_plugin(plugin);
        for (const config::PluginOption& option : given) {
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
