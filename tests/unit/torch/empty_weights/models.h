// Models for the tests of EmptyWeights, and the comparison with eager construction.
#pragma once

#include <coupler/empty_weights.h>
#include <coupler/error.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "empty_weights/empty_weights.h"
#include "refusal.h"

namespace coupler::testing {

namespace nn = torch::nn;

using ModulePtr = std::shared_ptr<nn::Module>;

struct Factory {
  std::string name;
  std::function<ModulePtr()> make;
};

// Modules of torch::nn, and constructors as users write them.
std::vector<Factory> factories();

// Parameters, then buffers, including undefined ones.
inline std::vector<empty_weights::MetaTensor> tensors_with_names(const nn::Module& module) {
  std::vector<empty_weights::MetaTensor> result;
  for (const auto& item : module.named_parameters()) result.push_back({item.key(), item.value()});
  for (const auto& item : module.named_buffers()) result.push_back({item.key(), item.value()});
  return result;
}

inline ModulePtr build_empty(const std::function<ModulePtr()>& make) {
  const EmptyWeights empty;
  return make();
}

// Materializes in place, as a loader does.
inline empty_weights::ReplayReport fill(const nn::Module& module) {
  const std::vector<empty_weights::MetaTensor> wanted = tensors_with_names(module);
  return empty_weights::materialize(wanted, [&](size_t i, const at::Tensor& value) {
    if (wanted[i].tensor.defined() && wanted[i].tensor.is_meta())
      empty_weights::put_value(wanted[i].tensor, value);
  });
}

// Equal bit for bit, including dtype, strides and autograd metadata.
inline void expect_same(const nn::Module& actual, const nn::Module& eager) {
  const std::vector<empty_weights::MetaTensor> a = tensors_with_names(actual),
                                               b = tensors_with_names(eager);
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    const at::Tensor &x = a[i].tensor, &y = b[i].tensor;
    ASSERT_EQ(x.defined(), y.defined()) << b[i].name;
    if (!x.defined()) continue;
    EXPECT_EQ(x.dtype(), y.dtype()) << b[i].name;
    EXPECT_EQ(x.strides(), y.strides()) << b[i].name;
    EXPECT_EQ(x.requires_grad(), y.requires_grad()) << b[i].name;
    EXPECT_EQ(x.is_leaf(), y.is_leaf()) << b[i].name;
    ASSERT_TRUE(x.device().is_cpu()) << b[i].name;
    EXPECT_TRUE(torch::equal(x, y)) << b[i].name << "\n" << x << "\n" << y;
  }
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// The peak memory of this process in KiB since the last call with `reset`; nullopt if the kernel
// does not allow the reset.
inline std::optional<long> peak_since_reset(bool reset) {
  if (reset) std::ofstream("/proc/self/clear_refs") << 5;
  std::ifstream status("/proc/self/status");
  long peak = -1, now = -1;
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) peak = std::stol(line.substr(6));
    if (line.starts_with("VmRSS:")) now = std::stol(line.substr(6));
  }
  if (reset && peak > now + 1024) return std::nullopt;
  return peak;
}

}  // namespace coupler::testing
