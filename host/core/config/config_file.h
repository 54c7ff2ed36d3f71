// Reads the sources of configuration: the file and the arguments of -o. Pure, except that it reads
// the file.
#pragma once

#include <optional>
#include <string>
#include <utility>

namespace coupler {

struct ConfigFile {
  std::string name;  // as messages show it
  std::string text;
};

// The file given by --config, which must exist, or ./train.toml, which need not. Throws
// Error(kConfig) if it cannot be read.
std::optional<ConfigFile> read_config_file(const std::optional<std::string>& given);

// "key=value" to {key, value}; throws Error(kConfig) for anything else.
std::pair<std::string, std::string> split_override(const std::string& text);

}  // namespace coupler
