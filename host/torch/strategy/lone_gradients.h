// LoneGradients: offers the gradients of a model trained by a single process to their users as they
// arrive. Hooks run on the thread that runs backward.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "strategy/flat_parameters.h"
#include "strategy/gradient_hooks.h"
#include "strategy/gradient_user.h"

namespace coupler {

class LoneGradients final : public GradientListener,
                            public std::enable_shared_from_this<LoneGradients> {
 public:
  // Both must outlive this.
  LoneGradients(FlatParameters& flat, const GradientUsers& users);

  // Puts the hooks on the parameters. Call once, after construction in a shared_ptr.
  void install();

  // Sets whether the next backward's gradients are offered.
  void set_offers(bool offers) { offers_ = offers; }
  // Call after a backward that threw.
  void abandon_backward() { active_ = false; }

 private:
  void on_gradient(size_t slot) override;

  FlatParameters& flat_;
  const GradientUsers& users_;
  std::vector<uint8_t> used_;  // by slot, whether used in this backward
  GradientHooks hooks_;
  bool offers_ = true;
  bool active_ = false;  // between the first hook of a backward and its end
};

}  // namespace coupler
