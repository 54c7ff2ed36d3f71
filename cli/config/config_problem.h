// Problems of a configuration as sentences for a list. Pure functions.
#pragma once

#include <coupler/error.h>

#include <string>

#include "config/config.h"

namespace coupler::cli {

// "train.toml:3:1: ": where a key was set; empty where it was not.
std::string source_of(const Config& config, const std::string& key);

// What an error says and its hint, in one line.
std::string sentence(const Error& error);

}  // namespace coupler::cli
