// ForwardRecorder: activation checkpointing of modules that know nothing of it. On a thread that
// prepared a model with checkpointed units every operation of a forward comes through here: one on
// a parameter of a unit begins a segment (forward_segment.h), one on a parameter elsewhere ends it.
// What autograd saves meanwhile is the segment's, by LibTorch's hooks for saved tensors. One a
// thread; a forward on another thread than prepare's keeps its activations.
//
// DispatchKey::TESTING_ONLY_GenericWrapper is the key: it stands above Autograd, Autocast and the
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

#include "strategy/model.h"
#include "train/forward_segment.h"

namespace coupler {

class ForwardRecorder {
 public:
  static ForwardRecorder& of_this_thread();

  // From now on modules whose names a pattern matches ("blocks.*"; * stands for any characters but
  // dots, ** for any) are units, the outer ones where one is in another. Throws Error(kConfig)
  // where a pattern matches none.
  void watch(const Model& model, const std::vector<std::string>& patterns);
  void forget_all();

  void call(const c10::OperatorHandle& op, std::vector<c10::IValue>& stack);
  // Null where nothing is to be done about what is saved now.
  std::unique_ptr<torch::autograd::SavedVariableHooks> hooks();
  // A backward begins: what is open stays as it is.
  void leave();

  // What autograd saves while compute runs, which is not recorded.
  static std::vector<at::Tensor> saved_during(const std::function<void()>& compute);

 private:
  static constexpr int kNoUnit = -1;  // of a parameter

  void enter(const std::vector<c10::IValue>& arguments);
  void open(int unit);
  void close();

  std::vector<std::string> units_;
  std::unordered_map<const c10::TensorImpl*, int> unit_of_;  // of every parameter of the models
  std::vector<at::Tensor> parameters_;  // those, so that nothing else gets their addresses
  std::shared_ptr<ForwardSegment> open_;
  int unit_ = kNoUnit;                            // open_'s
  std::vector<at::Tensor>* collected_ = nullptr;  // of saved_during()
};

}  // namespace coupler
