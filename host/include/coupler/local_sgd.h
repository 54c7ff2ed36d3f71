// LocalSGD: a part of a program in which the ranks train a model by themselves, and every few steps
// its parameters become the average of all, buffers rank 0's. What communication.local_sgd_steps
// does for a whole run, under Accelerate's name:
//
//   coupler::LocalSGD local_sgd(accelerator, net, {.local_sgd_steps = 8});
//   for (auto& batch : batches) {
//     auto step = accelerator.accumulate(net);
//     accelerator.backward(loss_of(net, batch));
//     opt.step();
//     opt.zero_grad();
//     local_sgd.step();
//   }
//
// Must not outlive the Accelerator. Used by the thread that trains; every rank makes it, calls
// step() and ends it at the same points.
#pragma once

#include <coupler/accelerator.h>

#include <cstdint>
#include <memory>

namespace coupler {

class Replica;

// When a LocalSGD averages. A value.
struct LocalSGDOptions {
  int64_t local_sgd_steps = 8;  // of an optimizer, between two averages
  bool enabled = true;          // false: gradients are averaged in every step, as without
};

class LocalSGD {
 public:
  // model: a prepared model. Gradients of it stay each rank's own from now on. With one process
  // nothing changes. Where the configuration has communication.local_sgd_steps that holds, and a
  // warning says so. Throws Error(kUnsupported) under a backend that divides the model and for a
  // pipeline, Error(kUsage) with training.optimizer_in_backward and within another LocalSGD of the
  // model, Error(kInvalidArgument) for fewer than one step.
  template <class Model>
  LocalSGD(Accelerator& accelerator, Model& model, const LocalSGDOptions& options = {},
           CallSite = {})
      : LocalSGD(accelerator, Accelerator::reference_to(model), options) {}
  // Averages, and throws where that fails. Where an exception leaves the scope it does not
  // communicate: the ranks stay apart until the next average, or checkpoint.
  ~LocalSGD() noexcept(false);
  LocalSGD(const LocalSGD&) = delete;
  LocalSGD& operator=(const LocalSGD&) = delete;

  // Behind the optimizer's step: averages where local_sgd_steps of these were taken since the last
  // average. While gradients accumulate no step is taken, and this does nothing.
  void step(CallSite = {});

 private:
  LocalSGD(Accelerator& accelerator, const detail::ModelRef& model, const LocalSGDOptions& options);

  std::shared_ptr<Replica> model_;  // null: nothing to do
  int exceptions_;                  // under way when the scope began
};

}  // namespace coupler
