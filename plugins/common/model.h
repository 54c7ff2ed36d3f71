// Model: the host's description of a model (db_model), checked and in the words of C++. A value
// that refers to the host's strings: valid as long as the db_model is. [any-thread]
#pragma once

#include <coupler/sharding.h>

#include <string_view>
#include <vector>

#include "common/error.h"

namespace db {

struct ModelModule {
  std::string_view name;  // "" the model itself
  std::string_view type;
  int64_t parent;  // smaller than the module's own index; -1: none
};

struct ModelParameter {
  std::string_view name;
  size_t module;
  db_dtype dtype;
  bool trainable;
  uint64_t rows;      // the first dimension; 1 for a scalar
  uint64_t elements;  // of all dimensions
};

struct Model {
  std::vector<ModelModule> modules;
  std::vector<ModelParameter> parameters;

  // A description that contradicts coupler/sharding.h is the host's mistake:
  // DB_ERR_INVALID_ARGUMENT, which names the module or parameter.
  static Failure read(const db_model* described, Model* model);
};

}  // namespace db
