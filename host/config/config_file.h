// The texts that configuration comes from: the file and the arguments of -o. Pure but for reading.
#pragma once

#include <optional>
#include <string>
#include <utility>

namespace coupler {

struct ConfigFile {
  std::string name;  // as it stands in messages
  std::string text;
};

// The file given by --config, which must be there, or ./train.toml, which need not. Throws
// Error(kConfig) where it cannot be read.
std::optional<ConfigFile> read_config_file(const std::optional<std::string>& given);

// "key=value" to {key, value}; throws Error(kConfig) for any other shape.
std::pair<std::string, std::string> split_override(const std::string& text);

}  // namespace coupler
