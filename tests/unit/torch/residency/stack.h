// Stack: a managed stack of Linear layers with a known order of use: up in forward, down in
// backward.
#pragma once

#include <ATen/Functions.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>

#include <chrono>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "managed.h"

namespace coupler::testing {

namespace nn = torch::nn;

constexpr size_t kLayers = 6;
constexpr int64_t kWidth = 16;
constexpr auto kPatience = std::chrono::seconds(20);

struct Layers {
  Layers() {
    for (size_t i = 0; i < kLayers; ++i) modules->push_back(nn::Linear(kWidth, kWidth));
  }
  nn::LinearImpl& at(size_t i) const { return *modules->ptr(i)->as<nn::LinearImpl>(); }
  at::Tensor forward(const std::vector<size_t>& order) const {
    at::Tensor x = at::ones({2, kWidth}).requires_grad_();
    for (const size_t i : order) x = at(i).forward(x).tanh();
    return x.sum();
  }
  nn::ModuleList modules;
};

inline const std::vector<size_t> kUp = {0, 1, 2, 3, 4, 5};

struct Stack {
  explicit Stack(const ManagedOptions& options = {})
      : expected(layers.forward(kUp).item<float>()),
        managed(strategy::describe(*layers.modules), options) {}

  // Forward and backward, and the effect of an optimizer's step on units.
  float pass(const std::vector<size_t>& order = kUp) {
    at::Tensor loss = layers.forward(order);
    loss.backward();
    end_pass();
    return loss.item<float>();
  }
  void end_pass() {
    managed.residency().end_of_pass();
    managed.residency().release_all();
  }

  Layers layers;
  float expected;  // of a forward pass in order
  Managed managed;
};

// Waits until another thread has made the condition true.
template <class Condition>
bool comes_true(const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// The exception's message; "" if there was none.
inline std::string said_by(const std::function<void()>& function) {
  try {
    function();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace coupler::testing
