// GradientUser: uses gradients while backward still runs (an optimizer that works in backward).
// GradientUsers: those of one model. A strategy offers them each gradient as soon as no rank can
// add to it. Called by the thread that runs backward.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "strategy/flat_parameters.h"

namespace coupler {

class GradientUser {
 public:
  // An averaged backward of the model begins. Throws Error if it must not.
  virtual void backward_begins() = 0;
  // Slots [first, end) have their gradients in .grad. Resets .grad of those it uses.
  virtual void take(FlatParameters& flat, size_t first, size_t end) = 0;

 protected:
  ~GradientUser() = default;
};

class GradientUsers {
 public:
  void add(const std::shared_ptr<GradientUser>& user) { users_.push_back(user); }
  // Whether any user is still alive.
  bool any() const;
  void tell_backward_begins() const;
  // A parameter whose gradient is used counts as written in place, so LibTorch reports an error if
  // this backward still needs its old value.
  void offer(FlatParameters& flat, size_t first, size_t end) const;

 private:
  std::vector<std::weak_ptr<GradientUser>> users_;
};

}  // namespace coupler
