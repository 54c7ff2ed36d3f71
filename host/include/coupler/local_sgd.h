// LocalSGD: a scope in which each rank trains a model independently and parameters are averaged
// over ranks every few steps; buffers get rank 0's values. Does for a part of a program what
// communication.local_sgd_steps does for a whole run, under Accelerate's name:
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
// Must not outlive the Accelerator. Used by the training thread; every rank creates it, calls
// step() and destroys it at the same points.
#pragma once

#include <coupler/accelerator.h>

#include <cstdint>
#include <memory>

namespace coupler {

namespace strategy {
class DataParallel;
}

// When a LocalSGD averages. A value.
struct LocalSGDOptions {
  int64_t local_sgd_steps = 8;  // optimizer steps between two averages
  bool enabled = true;          // false: gradients are averaged in every step, as usual
};

class LocalSGD {
 public:
  // model: a prepared model. Its gradients stay local to each rank from now on. No effect with one
  // process. If the configuration sets communication.local_sgd_steps, that takes precedence, and a
  // warning is logged. Throws Error(kUnsupported) under a backend that shards the model and for a
  // pipeline, Error(kUsage) with training.optimizer_in_backward and within another LocalSGD of the
  // model, Error(kInvalidArgument) for fewer than one step.
  template <class Model>
  LocalSGD(Accelerator& accelerator, Model& model, const LocalSGDOptions& options = {},
           CallSite = {})
      : LocalSGD(accelerator, Accelerator::reference_to(model), options) {}
  // Averages, and throws if that fails. If an exception leaves the scope, it does not communicate:
  // ranks keep different parameters until the next average or checkpoint.
  ~LocalSGD() noexcept(false);
  LocalSGD(const LocalSGD&) = delete;
  LocalSGD& operator=(const LocalSGD&) = delete;

  // Call after the optimizer's step. Averages if local_sgd_steps optimizer steps were taken since
  // the last average. Does nothing while gradients accumulate, since no step is taken.
  void step(CallSite = {});

 private:
  LocalSGD(Accelerator& accelerator, const detail::ModelRef& model, const LocalSGDOptions& options);

  std::shared_ptr<strategy::DataParallel> model_;  // null: nothing to do
  int exceptions_;  // std::uncaught_exceptions() when the scope began
};

}  // namespace coupler
