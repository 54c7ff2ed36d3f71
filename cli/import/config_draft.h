// ConfigDraft: a configuration under construction, as keys and values in the order in which they
// are set, and its TOML file. Single-threaded.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "config/config.h"

namespace coupler::cli {

// ConfigRequest::environment without variables: a file by itself.
inline constexpr const char* const kNoVariables[] = {nullptr};

class ConfigDraft {
 public:
  // key: a full key of the schema or of a backend ("backend.NAME.OPTION"). A later value replaces
  // an earlier one.
  void set(const std::string& key, const config::OptionValue& value);
  bool has(const std::string& key) const { return find(key) != nullptr; }
  // Its value as TOML; null if it is not set.
  const std::string* find(const std::string& key) const;
  void drop(const std::string& key);

  // Tables in the schema's order, each key preceded by its meaning as a comment. remarks: comments
  // at the top.
  std::string toml(const std::vector<std::string>& remarks) const;

  // The keys and their values as TOML, in the order of toml().
  std::vector<std::pair<std::string, std::string>> entries() const;

 private:
  std::vector<std::pair<std::string, std::string>> values_;  // rendered
};

// Throws Error(kUsage) if the path exists (unless it is a file and force is set), and Error(kIo) if
// its folder is not writable.
void require_writable(const std::string& path, bool force);

// Writes text to a new file (or, with force, replaces one) after load_config, and then `accept` if
// given, have accepted it: the file is complete and valid, or not written. If the path is a link,
// its target is replaced. A replaced file keeps its mode. Throws as require_writable(),
// load_config() and accept().
void write_config(const std::string& path, const std::string& text, bool force,
                  const std::function<void(const config::Config&)>& accept = {});

}  // namespace coupler::cli
