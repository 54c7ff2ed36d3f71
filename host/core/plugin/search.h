// The folders in which a backend's name is searched. [any-thread]; reads the environment each time.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace coupler {

struct SearchFolder {
  std::string path;
  std::string origin;  // why it is searched: "backend.plugin_path", "COUPLER_PLUGIN_PATH"…
};

// In search order, without repetition; includes folders that do not exist.
std::vector<SearchFolder> search_folders(const BackendConfig& backend);

struct FoundPlugin {
  std::string name;  // of the file libcoupler_NAME.so
  std::string path;
};

// Every plugin file of those folders: by folder, sorted by name within each; of equal names, the
// first one found.
std::vector<FoundPlugin> found_plugins(const BackendConfig& backend);

// The file that use names: a string with a slash is a path and returned as is; a name is searched.
// Throws Error(kPlugin) listing every folder searched and the available names.
std::string find_plugin(const std::string& use, const BackendConfig& backend);

}  // namespace coupler
