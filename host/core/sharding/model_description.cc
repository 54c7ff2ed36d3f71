#include "sharding/model_description.h"

#include <utility>

namespace coupler::sharding {

void ModelDescription::add_module(const std::string& name, const std::string& type,
                                  int64_t parent) {
  module_list_.push_back(&modules_.emplace_back(db_module{.struct_size = sizeof(db_module),
                                                          .name = name.c_str(),
                                                          .type = type.c_str(),
                                                          .parent = parent}));
}

void ModelDescription::add_parameter(const std::string& name, uint64_t module,
                                     std::vector<uint64_t> sizes, db_dtype dtype, bool trainable) {
  const std::vector<uint64_t>& own = sizes_.emplace_back(std::move(sizes));
  parameter_list_.push_back(
      &parameters_.emplace_back(db_parameter{.struct_size = sizeof(db_parameter),
                                             .name = name.c_str(),
                                             .module = module,
                                             .sizes = own.data(),
                                             .dimensions = static_cast<uint32_t>(own.size()),
                                             .dtype = dtype,
                                             .trainable = trainable ? 1 : 0,
                                             .reserved = 0}));
}

db_model ModelDescription::model() const {
  return {.struct_size = sizeof(db_model),
          .modules = module_list_.data(),
          .module_count = module_list_.size(),
          .parameters = parameter_list_.data(),
          .parameter_count = parameter_list_.size()};
}

}  // namespace coupler::sharding
