// ModelDescription: a model as a sharding plugin sees it: names, shapes and types, without tensors.
// One thread at a time.
#pragma once

#include <coupler/sharding.h>

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace coupler::sharding {

class ModelDescription {
 public:
  ModelDescription() = default;
  ModelDescription(const ModelDescription&) = delete;
  ModelDescription& operator=(const ModelDescription&) = delete;

  // In order of registration; names and types must outlive this object.
  void add_module(const std::string& name, const std::string& type, int64_t parent);
  void add_parameter(const std::string& name, uint64_t module, std::vector<uint64_t> sizes,
                     db_dtype dtype, bool trainable);

  // Describes what was added; points into this object and is valid until more is added.
  db_model model() const;

 private:
  std::deque<db_module> modules_;
  std::deque<std::vector<uint64_t>> sizes_;
  std::deque<db_parameter> parameters_;
  std::vector<const db_module*> module_list_;
  std::vector<const db_parameter*> parameter_list_;
};

}  // namespace coupler::sharding
