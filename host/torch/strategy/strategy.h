// Strategy: how one prepared model is kept on the ranks: whole on each (DataParallel), sharded
// (ShardedModel) or split into pipeline stages (PipelineStage). Used by the training thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "config/config.h"
#include "strategy/flat_parameters.h"
#include "strategy/model.h"

namespace coupler {

// GradientConsumer: uses gradients while backward still runs (an optimizer that works in backward).
// GradientUsers: those of one model. A strategy offers them each gradient as soon as no rank can
// add to it. Called by the thread that runs backward.
class GradientConsumer {
 public:
  // An averaged backward of the model begins. Throws Error if it must not.
  virtual void backward_begins() = 0;
  // Slots [first, end) have their gradients in .grad. Resets .grad of those it uses.
  virtual void take(FlatParameters& flat, size_t first, size_t end) = 0;

 protected:
  ~GradientConsumer() = default;
};

class GradientUsers {
 public:
  void add(const std::shared_ptr<GradientConsumer>& user) { users_.push_back(user); }
  // Whether any user is still alive.
  bool any() const;
  void tell_backward_begins() const;
  // A parameter whose gradient is used counts as written in place, so LibTorch reports an error if
  // this backward still needs its old value.
  void offer(FlatParameters& flat, size_t first, size_t end) const;

 private:
  std::vector<std::weak_ptr<GradientConsumer>> users_;
};

// The types of one model's parameters.
struct ModelTypes {
  std::set<at::ScalarType> stored;    // and updated by the optimizer
  std::set<at::ScalarType> computed;  // as operations see them, outside autocast
  std::set<at::ScalarType> reduced;   // of gradients between ranks
};

// What this rank keeps of one parameter of a model.
struct ParameterPart {
  size_t parameter = 0;        // in Model::parameters
  int64_t begin = 0, end = 0;  // range of its elements, row-major
  at::Tensor values;           // [end - begin], or the whole parameter in its shape
  at::Tensor held;             // what an optimizer holds for it; undefined if frozen
  int copies = 1, copy = 0;    // number of ranks that keep the same part; this rank's index
};

class Strategy {
 public:
  explicit Strategy(Model model) : model_(std::move(model)) {}
  virtual ~Strategy() = default;
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;

  const Model& model() const { return model_; }
  // Whether a variable is a parameter of this model, by identity.
  bool has(const at::Tensor& parameter) const {
    return index_of(parameter) < model_.parameters.size();
  }
  // Index in model().parameters; their number if it is not among them.
  size_t index_of(const at::Tensor& parameter) const {
    const auto found =
        std::find_if(model_.parameters.begin(), model_.parameters.end(),
                     [&](const ModelParameter& known) { return known.tensor.is_same(parameter); });
    return static_cast<size_t>(found - model_.parameters.begin());
  }

  // The memory that an optimizer updates on this rank.
  virtual FlatParameters& flat() = 0;
  // What an optimizer holds in place of a parameter of this model: the parameter itself, or the
  // tensors of flat() that are this rank's part of it (none if the rank owns nothing of it).
  virtual std::vector<at::Tensor> held_for(const at::Tensor& parameter) = 0;
  // Call when an optimizer has written to flat(). Collective.
  virtual void parameters_changed() = 0;
  // Call after parameters_changed(): stepped() after an optimizer's step, loaded() after a load,
  // which leaves all ranks equal. Collective.
  virtual void stepped() {}
  virtual void loaded() {}
  // Makes equal on all ranks what may differ during training (parameters between two averages,
  // buffers that one rank's modules change). Call before they are saved. Collective.
  virtual void settle() {}

  // Sets whether the next backward averages gradients over ranks (the default) or only accumulates.
  virtual void set_sync(bool sync) = 0;
  // Call around a backward that this model takes part in on every rank, even if this rank's reaches
  // none of its parameters. If it is averaged, all accumulated gradients are multiplied by factor,
  // the same on every rank. Collective.
  virtual void begin_backward(double factor) = 0;
  virtual void end_backward() = 0;
  // Call after a backward that threw: discards its work.
  virtual void abandon_backward() = 0;

  // Offers gradients to the user while backward runs, for as long as it lives.
  virtual void add_gradient_user(const std::shared_ptr<GradientConsumer>& user) {
    gradient_users_.add(user);
  }
  // Whether there is a user; then gradients may be gone after a backward.
  bool uses_gradients_in_backward() const { return gradient_users_.any(); }

  // Returns the 2-norm over all gradients of this model and scales them so that it is at most
  // max_norm. Throws Error naming a parameter if the norm is not finite. Collective.
  virtual double clip_grad_norm(double max_norm) = 0;
  virtual void clip_grad_value(double max_value) = 0;

  // This rank's gradients; all ranks' together are all of this model. In as few tensors as
  // possible, padding of flat memory (zeros) included.
  virtual std::vector<at::Tensor> own_gradients() = 0;
  // How the model is kept, in a few words.
  virtual std::string description() const = 0;
  // Whether the values of parameters stay in memory from one use to the next.
  virtual bool parameters_stay() const = 0;
  virtual ModelTypes types() const = 0;

  // The whole gradient of a parameter of this model; undefined if no rank has one. Collective.
  virtual at::Tensor whole_gradient(const at::Tensor& parameter) = 0;
  // This rank's part of each parameter of which it keeps any, in order of registration. Call
  // parameters_changed() after writing to the values.
  virtual std::vector<ParameterPart> parts() = 0;
  // The state this rank carries from step to step in addition to its parameters; other models may
  // use the same names. The tensors are the memory itself, which a load writes to.
  virtual NamedTensors carried() { return {}; }
  // The loss of later backwards is scaled by a further `factor`; scales carried gradients to match.
  virtual void gradient_scale_changes(double /*factor*/) {}
  // One whole parameter of model().parameters; do not keep it. Collective.
  virtual at::Tensor whole_parameter(size_t parameter) = 0;

 protected:
  const GradientUsers& gradient_users() const { return gradient_users_; }

 private:
  Model model_;
  GradientUsers gradient_users_;
};

// Shards the model according to the backend's plan, or keeps it whole on every rank if there is
// none. comm: only for gradients; null for one process without such a backend. Throws
// Error(kConfig) if the settings in communication or memory contradict the plan. Collective.
std::shared_ptr<Strategy> make_strategy(Model model, std::shared_ptr<Communicator> comm,
                                        const TrainingConfig& config, const MemoryConfig& memory,
                                        const CommunicationConfig& communication = {});

// GradientHooks: notifies a strategy of each gradient that LibTorch has put into a parameter's
// .grad, on the thread that runs backward.

class GradientListener {
 public:
  virtual void on_gradient(size_t index) = 0;

 protected:
  ~GradientListener() = default;
};

class GradientHooks {
 public:
  // Makes every later gradient of the parameter call listener->on_gradient(index). Hooks live as
  // long as the parameter, which may outlive the listener, so they hold it weakly.
  void add(const at::Tensor& parameter, std::weak_ptr<GradientListener> listener, size_t index);

 private:
  // Parameters hold their accumulators, which own the hooks, only weakly; these keep them alive.
  std::vector<std::shared_ptr<void>> accumulators_;
};

// Call from a hook: runs `done` when the current backward has ended; if it is nested in another
// (NestedBackward), when the outermost has.
void after_backward(std::function<void()> done);

// While it lives, a backward on its thread is nested in the one that called us.
class NestedBackward {
 public:
  NestedBackward();
  ~NestedBackward();
  NestedBackward(const NestedBackward&) = delete;
  NestedBackward& operator=(const NestedBackward&) = delete;
};

// Throw Error(kUnsupported) for gradients that cannot be averaged; name: the parameter's.
void require_dense_gradient(const at::Tensor& gradient, const std::string& name);
[[noreturn]] void throw_second_gradient(const std::string& name);

}  // namespace coupler
