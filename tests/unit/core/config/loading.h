// Loading a configuration from strings, for the tests of this folder.
#pragma once

#include <coupler/error.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "config/config.h"
#include "working_folder.h"

namespace coupler::config {

struct Layers {
  std::string file;  // the content of train.toml, "" for no file
  std::vector<std::string> environment;
  std::vector<std::string> overrides;
  std::vector<std::pair<std::string, OptionValue>> code;
};

inline Config load(const Layers& layers) {
  const WorkingFolder folder;
  if (!layers.file.empty()) folder.write("train.toml", layers.file);
  std::vector<const char*> environment;
  for (const std::string& variable : layers.environment) environment.push_back(variable.c_str());
  environment.push_back(nullptr);
  ConfigRequest request;
  request.environment = environment.data();
  request.overrides = layers.overrides;
  request.code = layers.code;
  return load_config(request);
}

// The message of the Error(kConfig) that loading throws.
inline std::string message_of(const Layers& layers) {
  try {
    load(layers);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    EXPECT_EQ(error.exit_code(), 2);
    return error.what();
  }
  ADD_FAILURE() << "no exception was thrown";
  return "";
}

}  // namespace coupler::config
