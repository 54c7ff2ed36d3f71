// GradientReducer: averages the gradients of one model over the ranks while backward runs. Hooks on
// the parameters copy each gradient, scaled by 1/world, into its place in flat memory; full buckets
// are reduced in one fixed order. Where a reduction takes several collectives, the next one of a
// bucket is issued when a later bucket begins: so the order does not depend on what is complete
// when. Hooks and finish() run on the thread that runs backward.
//
// A parameter that got no gradient on this rank contributes zeros; flags that travel with the last
// bucket (as a bucket of their own, where gradients are compressed) tell which parameters no rank
// used: their gradients stay as they are.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "strategy/bucket_reduction.h"
#include "strategy/bucket_tuner.h"
#include "strategy/flat_parameters.h"
#include "strategy/gradient_compression.h"
#include "strategy/gradient_hooks.h"
#include "strategy/gradient_user.h"

namespace coupler {

class GradientReducer final : public GradientListener,
                              public std::enable_shared_from_this<GradientReducer> {
 public:
  // buffers are broadcast from rank 0 after each reduction; empty: none are. users outlive this.
  // Throws Error(kUnsupported) where the transport lacks what a compression needs.
  GradientReducer(FlatParameters& flat, std::shared_ptr<Communicator> comm,
                  std::vector<at::Tensor> buffers, double bucket_cap_mb,
                  const CommunicationConfig& communication, const GradientUsers& users);

  // Puts the hooks on the parameters; once, after construction in a shared_ptr.
  void install();

  // Whether the next backward is reduced (the default) or only accumulates.
  void set_sync(bool sync) { sync_ = sync; }

  // Reduces a backward that touched no parameter of this model on this rank, so that the peers that
  // did are not left waiting. Does nothing when the last backward was reduced.
  void finish_if_untouched();
  // Before a backward: its average, and what it is added to, is multiplied by factor.
  void expect_backward(double factor);
  // After a backward that threw: forgets what it had begun. Buckets under way are waited for.
  void abandon_backward();
  // What this rank carries from step to step.
  NamedTensors carried() const { return compression_.carried(); }
  void gradient_scale_changes(double factor) { compression_.gradient_scale_changes(factor); }

 private:
  struct Bucket {
    at::Tensor memory;  // slice of a group's flat gradients
    size_t first_slot = 0, end_slot = 0;
    size_t pending = 0;
    std::unique_ptr<BucketReduction> reduction = nullptr;
    int issued = 0;         // of its collectives, in this backward
    bool complete = false;  // the sum is there
    Work work = {};
  };

  void on_gradient(size_t slot) override;
  void set_factor(double factor);
  void begin();
  void take_gradient(size_t slot);
  void launch_ready();
  void launch(Bucket& bucket);
  void issue_next(Bucket& bucket);
  bool go_on_before(size_t end);
  void complete(Bucket& bucket);
  void offer_ready();
  void offer(const Bucket& bucket);
  void finish();
  void publish_gradients();
  void cut_buckets();

  FlatParameters& flat_;
  std::shared_ptr<Communicator> comm_;
  std::vector<at::Tensor> buffers_;
  GradientCompression compression_;
  BucketTuner tuner_;
  const GradientUsers& users_;
  at::Tensor scale_;  // factor / world, 0-dimensional: keeps the gradient's dtype
  std::vector<Bucket> buckets_;
  std::vector<size_t> bucket_of_slot_;
  std::vector<uint8_t> taken_;            // by slot, in this backward
  std::vector<Registration> registered_;  // of the groups' flat gradients
  GradientHooks hooks_;
  size_t next_bucket_ = 0;
  size_t next_offer_ = 0;  // of a bucket to users_
  bool sync_ = true;
  double factor_ = 1;     // of the next average
  bool active_ = false;   // between the first hook of a backward and finish()
  bool touched_ = false;  // a hook ran since expect_backward()
  double began_ = 0;      // seconds, of the first hook
};

}  // namespace coupler
