#include "comparison.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace coupler::testing {
namespace {

at::Tensor loss_of(const Tensors& outputs) {
  at::Tensor loss = at::zeros({});
  for (const at::Tensor& output : outputs) {
    if (!output.is_floating_point()) continue;
    // Varying weights, so that a normalized output has a gradient too.
    const at::Tensor weights = at::arange(output.numel(), output.options().dtype(at::kFloat)).cos();
    const at::Tensor flat = output.reshape({-1}).to(at::kFloat);
    loss = loss + (flat * weights).sum() + 0.1 * flat.square().sum();
  }
  return loss;
}

at::Tensor detached(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.is_sparse() ? tensor.to_dense() : tensor;
  return dense.detach().clone();
}

void take_gradient(Outcome& outcome, const std::string& name, const at::Tensor& tensor) {
  outcome.emplace_back("gradient of " + name,
                       tensor.grad().defined() ? detached(tensor.grad()) : at::Tensor());
  tensor.mutable_grad() = at::Tensor();
}

}  // namespace

at::Tensor Inputs::real(at::IntArrayRef sizes) {
  const int64_t numel = c10::multiply_integers(sizes);
  // Different for each input of a pass.
  const double shift = static_cast<double>(leaves_.size());
  leaves_.push_back(at::linspace(shift - 50, shift + 50, numel).sin().view(sizes));
  return leaves_.back().requires_grad_();
}

at::Tensor Inputs::index(int64_t below, at::IntArrayRef sizes) {
  return at::arange(c10::multiply_integers(sizes)).mul(7).remainder(below).view(sizes);
}

Outcome run(const Subject& subject) {
  at::manual_seed(7);  // dropout
  Inputs inputs;
  Tensors outputs = subject.forward(inputs);
  Outcome outcome;
  for (const at::Tensor& output : outputs) outcome.emplace_back("output", detached(output));
  const at::Tensor loss = loss_of(outputs);
  outputs.clear();
  loss.backward();
  for (const auto& item : subject.module->named_parameters()) {
    take_gradient(outcome, item.key(), item.value());
  }
  for (const at::Tensor& leaf : inputs.leaves()) take_gradient(outcome, "an input", leaf);
  for (const auto& item : subject.module->named_buffers()) {
    outcome.emplace_back("buffer " + item.key(), detached(item.value()));
  }
  return outcome;
}

void expect_same(const Outcome& actual, const Outcome& expected, double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto& [name, want] = expected[i];
    const at::Tensor& have = actual[i].second;
    EXPECT_EQ(actual[i].first, name);
    ASSERT_EQ(have.defined(), want.defined()) << name;
    if (!want.defined() || want.numel() == 0) continue;
    ASSERT_EQ(have.sizes(), want.sizes()) << name;
    const double scale = std::max(1.0, want.to(at::kDouble).abs().max().item<double>());
    const double error = (have.to(at::kDouble) - want.to(at::kDouble)).abs().max().item<double>();
    EXPECT_LE(error, tolerance * scale) << name;
  }
}

void expect_managed_equals_plain(const Make& make, const ManagedOptions& options,
                                 size_t units_at_once) {
  const Subject plain = make(), subject = make();
  Managed managed(strategy::describe(*subject.module), options);
  for (int pass = 0; pass < 2; ++pass) {
    SCOPED_TRACE("pass " + std::to_string(pass));
    const Outcome expected = run(plain);
    // At least one gradient is not zero; otherwise the comparison proves nothing.
    EXPECT_TRUE(std::any_of(expected.begin(), expected.end(), [](const auto& item) {
      return item.first.starts_with("gradient of") && item.first != "gradient of an input" &&
             item.second.defined() && item.second.abs().max().template item<double>() > 0;
    }));
    expect_same(run(subject), expected);
    managed.residency().end_of_pass();
  }
  EXPECT_GE(managed.memory.fill_count(), 1u);
  if (options.prefetch == 0 && options.live_bytes == 0) {
    EXPECT_LE(managed.resident_units(), units_at_once);
    EXPECT_LE(managed.pool.peak_bytes(), units_at_once * managed.largest_unit());
  }
  managed.residency().release_all();
  EXPECT_EQ(managed.resident_units(), 0u);
  for (const auto& unit : managed.residency().units()) EXPECT_EQ(unit->pins.load(), 0);
}

}  // namespace coupler::testing
