// ForwardRecorder: activation checkpointing of unmodified modules. On a thread that prepared a
// model with checkpointed units, every operation of a forward passes through here. An operation on
// a parameter of a unit begins a segment (forward_segment.h); one on a parameter elsewhere ends it.
// LibTorch's hooks for saved tensors give the segment what autograd saves in between. One per
// thread; a forward on a thread other than prepare's keeps its activations.
//
// The dispatch key is TESTING_ONLY_GenericWrapper: it is above Autograd, Autocast and the
// intercept, and LibTorch itself registers nothing for it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "activations/forward_segment.h"
#include "strategy/model.h"

namespace coupler::activations {

class ForwardRecorder {
 public:
  static ForwardRecorder& of_this_thread();

  // Makes modules whose names match a pattern units ("blocks.*"; * matches any characters except
  // dots, ** any). If units are nested, only the outer one counts. Throws Error(kConfig) if a
  // pattern matches no module.
  void watch(const strategy::Model& model, const std::vector<std::string>& patterns);
  void forget_all();

  void call(const c10::OperatorHandle& op, std::vector<c10::IValue>& stack);
  // Null if what is saved now needs no hooks.
  std::unique_ptr<torch::autograd::SavedVariableHooks> hooks();
  // A backward begins: drops the open segment without closing it.
  void leave();
  // A part of a forward ends, and something else comes before its backward: closes the open
  // segment.
  void close();

  // Returns what autograd saves while compute runs, with its graph; compute is not recorded.
  static std::vector<at::Tensor> saved_during(const std::function<void()>& compute);

 private:
  static constexpr int kNoUnit = -1;  // of a parameter outside the units

  void enter(const std::vector<c10::IValue>& arguments);
  void open(int unit);

  std::vector<std::string> units_;
  std::unordered_map<const c10::TensorImpl*, int> unit_of_;  // by parameter of the models
  std::vector<at::Tensor> parameters_;  // keeps their addresses from being reused
  std::shared_ptr<ForwardSegment> open_;
  int unit_ = kNoUnit;                            // of open_
  std::vector<at::Tensor>* collected_ = nullptr;  // for saved_during()
};

}  // namespace coupler::activations
