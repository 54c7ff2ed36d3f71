// PluginOptions: the [backend.NAME] table of one plugin in the form of the ABI. First checked
// against the plugin's own list, so that errors can name where the option was written. Immutable
// after construction; any thread may read it.
#pragma once

#include <coupler/distributed_backend.h>

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "config/config.h"

namespace coupler {

class PluginOptions {
 public:
  // Throws Error(kConfig) naming the source of an unknown or mistyped option. The key `taken` is
  // the host's own and not passed to the plugin.
  PluginOptions(const DistributedBackend& plugin, const BackendConfig& backend,
                const std::string& taken = {});

  PluginOptions(const PluginOptions&) = delete;
  PluginOptions& operator=(const PluginOptions&) = delete;

  const db_option* const* data() const { return pointers_.data(); }
  uint64_t size() const { return pointers_.size(); }
  // Key and value as strings, for ranks to compare.
  std::vector<std::pair<std::string, std::string>> facts() const;

 private:
  std::string name_;
  std::deque<std::string> texts_;
  std::deque<db_option> options_;
  std::vector<const db_option*> pointers_;
};

// The option `base` of a wrapper's table, "" if it is not set. Throws Error(kConfig).
std::string base_option(const std::string& plugin, const BackendConfig& backend);

}  // namespace coupler
