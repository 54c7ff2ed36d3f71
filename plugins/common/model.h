// Model: the host's description of a model (db_model), validated and in C++ types. It borrows the
// host's strings and is valid as long as the db_model is. [any-thread]
#pragma once

#include <coupler/sharding.h>

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

}  // namespace db
