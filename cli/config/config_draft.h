// ConfigDraft: a configuration that is being made, as keys and values in the order in which they
// are set, and the TOML file that it becomes. Single-threaded.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "config/config.h"

namespace coupler::cli {

class ConfigDraft {
 public:
  // key: in full, of the schema or of a backend ("backend.fsdp.strategy"). A later value replaces
  // an earlier one.
  void set(const std::string& key, const OptionValue& value);
  bool has(const std::string& key) const { return find(key) != nullptr; }
  // Its value as TOML; null where it is not set.
  const std::string* find(const std::string& key) const;
  void drop(const std::string& key);

  // Tables in the schema's order, each key with what it means as a comment. remark: lines at the
  // top, each becomes a comment.
  std::string toml(const std::vector<std::string>& remarks) const;

  // The keys and their values as TOML, in the order of toml().
  std::vector<std::pair<std::string, std::string>> entries() const;

 private:
  std::vector<std::pair<std::string, std::string>> values_;  // rendered
};

// Throws Error(kUsage) where the path is taken (unless it is a file and force is given), Error(kIo)
// where nothing can be written beside it.
void require_writable(const std::string& path, bool force);

// Writes text to a file that is not there yet (or to be replaced, with force), once load_config has
// taken it: a file is whole and right, or it is not written. A link keeps pointing to what is
// replaced, and that keeps its mode. Throws as require_writable().
void write_config(const std::string& path, const std::string& text, bool force);

}  // namespace coupler::cli
