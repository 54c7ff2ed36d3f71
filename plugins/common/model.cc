#include "common/model.h"

#include <string>

#include "common/types.h"

namespace db {
namespace {

Failure wrong(const char* what, uint64_t index, const char* problem) {
  return Failure::make(DB_ERR_INVALID_ARGUMENT, "model description: " + std::string(what) +
                                                    " number " + std::to_string(index) + " " +
                                                    problem);
}

Failure read_module(const db_module* given, uint64_t index, ModelModule* module) {
  if (given == nullptr || !DB_HAS(given, db_module, parent) || given->name == nullptr ||
      given->type == nullptr)
    return wrong("module", index, "is NULL, lacks a name or type, or has too small a struct_size");
  if (given->parent < -1 || given->parent >= static_cast<int64_t>(index))
    return wrong("module", index, "does not come after its parent");
  *module = {given->name, given->type, given->parent};
  return {};
}

Failure read_parameter(const db_parameter* given, uint64_t index, uint64_t modules,
                       ModelParameter* parameter) {
  if (given == nullptr || !DB_HAS(given, db_parameter, trainable) || given->name == nullptr ||
      (given->sizes == nullptr && given->dimensions > 0))
    return wrong("parameter", index,
                 "is NULL, lacks a name or sizes, or has too small a struct_size");
  if (given->module >= modules)
    return wrong("parameter", index, "belongs to a module that does not exist");
  if (dtype_size(given->dtype) == 0) return wrong("parameter", index, "has an unknown type");
  uint64_t elements = 1;
  for (uint32_t i = 0; i < given->dimensions; ++i)
    if (__builtin_mul_overflow(elements, given->sizes[i], &elements))
      return wrong("parameter", index, "has more elements than 64 bits can count");
  *parameter = {given->name,           static_cast<size_t>(given->module),          given->dtype,
                given->trainable != 0, given->dimensions > 0 ? given->sizes[0] : 1, elements};
  return {};
}

}  // namespace

Failure Model::read(const db_model* described, Model* model) {
  if (described == nullptr || !DB_HAS(described, db_model, parameter_count) ||
      (described->modules == nullptr && described->module_count > 0) ||
      (described->parameters == nullptr && described->parameter_count > 0))
    return Failure::make(DB_ERR_INVALID_ARGUMENT,
                         "the model description is NULL or its struct_size is too small");
  uint64_t total = 0;
  for (uint64_t i = 0; i < described->module_count; ++i) {
    Failure failure = read_module(described->modules[i], i, &model->modules.emplace_back());
    if (!failure.ok()) return failure;
  }
  for (uint64_t i = 0; i < described->parameter_count; ++i) {
    ModelParameter& parameter = model->parameters.emplace_back();
    Failure failure =
        read_parameter(described->parameters[i], i, described->module_count, &parameter);
    if (!failure.ok()) return failure;
    // After this check, sums over parameters cannot overflow.
    if (__builtin_add_overflow(total, parameter.elements, &total))
      return wrong("parameter", i, "brings the total to more elements than 64 bits can count");
  }
  return {};
}

}  // namespace db
