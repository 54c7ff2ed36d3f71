// Configuration problems as sentences for a list. Pure functions.
#pragma once

#include <coupler/error.h>

#include <string>

#include "config/config.h"

namespace coupler::cli {

// "train.toml:3:1: ": where a key was set; "" if it was not set.
std::string source_of(const Config& config, const std::string& key);

// An error's message and hint, in one line.
std::string sentence(const Error& error);

}  // namespace coupler::cli
