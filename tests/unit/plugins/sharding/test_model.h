// TestModel: a hand-built model description, as the host passes it. For one thread.
#pragma once

#include <coupler/sharding.h>

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace db {

class TestModel {
 public:
  // The model itself is module 0.
  TestModel() { add_module("", "NetImpl", -1); }
  TestModel(const TestModel&) = delete;
  TestModel& operator=(const TestModel&) = delete;

  size_t add_module(const std::string& name, const std::string& type, int64_t parent = 0) {
    const std::string& n = texts_.emplace_back(name);
    const std::string& t = texts_.emplace_back(type);
    modules_.push_back({sizeof(db_module), n.c_str(), t.c_str(), parent});
    return modules_.size() - 1;
  }

  void add_parameter(size_t module, const std::string& leaf, std::vector<uint64_t> sizes,
                     db_dtype dtype = DB_F32, bool trainable = true) {
    const std::string owner = modules_[module].name;
    const std::string& name = texts_.emplace_back(owner.empty() ? leaf : owner + "." + leaf);
    const std::vector<uint64_t>& kept = sizes_.emplace_back(std::move(sizes));
    parameters_.push_back({sizeof(db_parameter), name.c_str(), module, kept.data(),
                           static_cast<uint32_t>(kept.size()), dtype, trainable ? 1 : 0, 0});
  }

  // Adds a module with a weight of out x in elements and a bias.
  size_t add_linear(const std::string& name, uint64_t in, uint64_t out, int64_t parent = 0) {
    const size_t module = add_module(name, "torch::nn::LinearImpl", parent);
    add_parameter(module, "weight", {out, in});
    add_parameter(module, "bias", {out});
    return module;
  }

  // Valid until something is added.
  const db_model* describe() {
    module_pointers_.clear();
    parameter_pointers_.clear();
    for (const db_module& module : modules_) module_pointers_.push_back(&module);
    for (const db_parameter& parameter : parameters_) parameter_pointers_.push_back(&parameter);
    model_ = {sizeof(db_model), module_pointers_.data(), module_pointers_.size(),
              parameter_pointers_.data(), parameter_pointers_.size()};
    return &model_;
  }

  std::vector<db_module>& modules() { return modules_; }
  std::vector<db_parameter>& parameters() { return parameters_; }
  uint64_t elements(size_t parameter) const {
    uint64_t product = 1;
    for (const uint64_t size : sizes_[parameter]) product *= size;
    return product;
  }
  uint64_t rows(size_t parameter) const {
    return sizes_[parameter].empty() ? 1 : sizes_[parameter][0];
  }

 private:
  std::deque<std::string> texts_;
  std::deque<std::vector<uint64_t>> sizes_;
  std::vector<db_module> modules_;
  std::vector<db_parameter> parameters_;
  std::vector<const db_module*> module_pointers_;
  std::vector<const db_parameter*> parameter_pointers_;
  db_model model_{};
};

}  // namespace db
