// Model: the host's description of a model (db_model), validated and in C++ types. It borrows the
// host's strings and is valid as long as the db_model is. [any-thread]
#pragma once

#include <coupler/sharding.h>

#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"

namespace db {

struct ModelModule {
  std::string_view name;  // "" for the model itself
  std::string_view type;
  int64_t parent;  // smaller than the module's own index; -1: none
};

struct ModelParameter {
  std::string_view name;
  size_t module;
  db_dtype dtype;
  bool trainable;
  uint64_t rows;      // the first dimension; 1 for a scalar
  uint64_t elements;  // product of all dimensions
};

struct Model {
  std::vector<ModelModule> modules;
  std::vector<ModelParameter> parameters;

  // A description that violates coupler/sharding.h is a bug of the host: DB_ERR_INVALID_ARGUMENT
  // with the module or parameter.
  static Failure read(const db_model* described, Model* model);
};

// Names of modules, parameters and types as users write them in options: comma-separated lists and
// patterns with '*'. Pure functions; [any-thread].

// The items between commas, with surrounding whitespace removed; empty items are dropped.
std::vector<std::string> split_list(std::string_view text);

// Whether a dotted name matches a pattern: '*' matches any characters except dots ("blocks.*"
// matches every block but nothing inside it), "**" matches any characters.
bool matches(std::string_view pattern, std::string_view name);

// "a, b, c and 9 more": some existing names, for the message about one that does not exist.
std::string list_some(const std::vector<std::string_view>& names);

}  // namespace db
