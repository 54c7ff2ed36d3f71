// Strategy: how one prepared model is kept on the ranks: whole on each (Replica) or divided
// (ShardedModel). Used by the thread that trains.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "config/config.h"
#include "strategy/flat_parameters.h"
#include "strategy/gradient_user.h"
#include "strategy/model.h"

namespace coupler {

// Of the parameters of one model.
struct ModelTypes {
  std::set<at::ScalarType> stored;    // and updated by the optimizer
  std::set<at::ScalarType> computed;  // what operations find, outside of autocast
  std::set<at::ScalarType> reduced;   // gradients on their way between ranks
};

// What this rank keeps of one parameter of a model.
struct ParameterPart {
  size_t parameter = 0;        // in Model::parameters
  int64_t begin = 0, end = 0;  // of its elements, row-major
  at::Tensor values;           // [end - begin], or the whole parameter in its shape
  at::Tensor held;             // what an optimizer holds for it; undefined: it is frozen
  int copies = 1, copy = 0;    // ranks that keep the same part, and which of them this one is
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
  // In model().parameters; their number where it is not among them.
  size_t index_of(const at::Tensor& parameter) const {
    const auto found =
        std::find_if(model_.parameters.begin(), model_.parameters.end(),
                     [&](const ModelParameter& known) { return known.tensor.is_same(parameter); });
    return static_cast<size_t>(found - model_.parameters.begin());
  }

  // The memory that an optimizer updates on this rank.
  virtual FlatParameters& flat() = 0;
  // What an optimizer holds in place of a parameter of this model: itself, or the tensors of
  // flat() that are this rank's part of it (none, where the rank owns nothing of it).
  virtual std::vector<at::Tensor> held_for(const at::Tensor& parameter) = 0;
  // Called when an optimizer has written to flat(). Collective.
  virtual void parameters_changed() = 0;
  // Behind it: after a step of an optimizer, or after a load, which leaves all ranks equal.
  // Collective.
  virtual void stepped() {}
  virtual void loaded() {}
  // Makes equal on all ranks what training has left to differ (parameters between two averages,
  // buffers that one rank's modules change). Called before they are saved. Collective.
  virtual void settle() {}

  // Whether the next backward averages gradients over ranks (the default) or only accumulates.
  virtual void set_sync(bool sync) = 0;
  // Around a backward that this model takes part in on every rank, even where this rank's reaches
  // none of its parameters. Where it is averaged, all that is accumulated is multiplied by factor,
  // the same on every rank. Collective.
  virtual void begin_backward(double factor) = 0;
  virtual void end_backward() = 0;
  // After a backward that threw: forgets what it had begun.
  virtual void abandon_backward() = 0;

  // From now on gradients are offered to it while backward runs, for as long as it lives.
  virtual void add_gradient_user(const std::shared_ptr<GradientUser>& user) {
    gradient_users_.add(user);
  }
  // Whether there is one: after a backward gradients need not be there any more.
  bool uses_gradients_in_backward() const { return gradient_users_.any(); }

  // The 2-norm over all gradients of this model; they are scaled so that it is at most max_norm.
  // Throws Error naming a parameter where the norm is not finite. Collective.
  virtual double clip_grad_norm(double max_norm) = 0;
  virtual void clip_grad_value(double max_value) = 0;

  // This rank's gradients, which together with those of the other ranks are all of this model: in
  // as few tensors as may be, padding of flat memory (zeros) included.
  virtual std::vector<at::Tensor> own_gradients() = 0;
  // How the model is kept, in a few words for people.
  virtual std::string description() const = 0;
  // Whether the values of parameters stay in memory from one use to the next.
  virtual bool parameters_stay() const = 0;
  virtual ModelTypes types() const = 0;

  // The gradient of a parameter of this model, whole; undefined where no rank has one. Collective.
  virtual at::Tensor whole_gradient(const at::Tensor& parameter) = 0;
  // This rank's part of each parameter that it keeps something of, in order of registration.
  // parameters_changed() is to be called where the values were written to.
  virtual std::vector<ParameterPart> parts() = 0;
  // What this rank carries from step to step beside its parameters, by names that other models may
  // have too: the memory itself, which a load writes to.
  virtual NamedTensors carried() { return {}; }
  // The loss of later backwards is scaled factor times as much: what is carried of gradients
  // becomes as large as they will be.
  virtual void gradient_scale_changes(double /*factor*/) {}
  // One parameter of model().parameters, whole; not to be kept. Collective.
  virtual at::Tensor whole_parameter(size_t parameter) = 0;

 protected:
  const GradientUsers& gradient_users() const { return gradient_users_; }

 private:
  Model model_;
  GradientUsers gradient_users_;
};

// Divided as the backend's plan says, or whole on every rank where it has none. comm: the
// gradients' own; null for one process without such a backend. Throws Error(kConfig) where what
// communication asks for cannot be. Collective.
std::shared_ptr<Strategy> make_strategy(Model model, std::shared_ptr<Communicator> comm,
                                        const TrainingConfig& config, const MemoryConfig& memory,
                                        const CommunicationConfig& communication = {});

}  // namespace coupler
