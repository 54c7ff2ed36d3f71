// Where a backend's name is looked for. [any-thread]; reads the environment at each call.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace coupler {

struct SearchFolder {
  std::string path;
  std::string origin;  // why it is searched: "backend.plugin_path", "COUPLER_PLUGIN_PATH"…
};

// In the order of search, without repetition; folders that do not exist are in the list too.
std::vector<SearchFolder> search_folders(const BackendConfig& backend);

struct FoundPlugin {
  std::string name;  // of the file libcoupler_NAME.so
  std::string path;
};

// Every plugin file of those folders: by folder, sorted by name in each; a name found twice counts
// where it was found first.
std::vector<FoundPlugin> found_plugins(const BackendConfig& backend);

// The file that use names: a text with a slash is a path and returned as it is; a name is searched.
// Throws Error(kPlugin) listing every folder looked in and the names there are.
std::string find_plugin(const std::string& use, const BackendConfig& backend);

}  // namespace coupler
