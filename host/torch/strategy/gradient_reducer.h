// GradientReducer: averages the gradients of one model over the ranks while backward runs. Hooks on
// the parameters copy each gradient, scaled by 1/world_size, into its place in flat memory; full
// buckets are reduced in one fixed order. If a reduction takes several collectives, a bucket's next
// one is issued when a later bucket begins, so the order does not depend on completion times. Hooks
// and finish() run on the thread that runs backward.
//
// A parameter without a gradient on this rank contributes zeros. Flags, reduced with the last
// bucket (or as their own bucket if gradients are compressed or a comm hook reduces them), show
// which parameters no rank used; the gradients of those stay as they are.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "strategy/bucket_reduction.h"
#include "strategy/comm_hook.h"
#include "strategy/flat_parameters.h"
#include "strategy/gradient_compression.h"
#include "strategy/gradient_hooks.h"
#include "strategy/gradient_sync.h"
#include "strategy/gradient_work.h"
#include "strategy/model.h"

namespace coupler::strategy {

// BucketTuner: chooses how gradients are cut into buckets: tries a few plans in the first steps and
// keeps the fastest. All ranks choose the same one, since they compare the slowest rank's times.
// Used by the thread that runs backward.

// How one step's gradients are reduced.
struct BucketPlan {
  int64_t cap_bytes = 0;  // 0: one bucket
  bool overlap = false;   // buckets are reduced while backward continues; else backward waits
  bool operator==(const BucketPlan&) const = default;
};

class BucketTuner {
 public:
  // total_bytes: of all gradients. cap_mb > 0 fixes the plan (overlapped buckets of that size).
  BucketTuner(int64_t total_bytes, double cap_mb);

  const BucketPlan& plan() const { return candidates_[current_]; }

  // Reports the seconds that one synchronized backward took under plan(); true if plan() has
  // changed. Every few calls collective, at the same calls on every rank.
  bool report(double seconds, comm::Communicator& comm);

 private:
  void choose_fastest(comm::Communicator& comm);

  std::vector<BucketPlan> candidates_;
  std::vector<std::vector<double>> times_;  // by candidate
  size_t current_ = 0;
  bool settled_ = false;
};

class GradientReducer final : public GradientSync,
                              public GradientListener,
                              public std::enable_shared_from_this<GradientReducer> {
 public:
  // model: its type, for messages. buffers are broadcast from rank 0 after each reduction; empty:
  // none are. flat must outlive this. Throws Error(kUnsupported) if the transport lacks what a
  // compression needs.
  GradientReducer(std::string model, FlatParameters& flat, std::shared_ptr<comm::Communicator> comm,
                  std::vector<at::Tensor> buffers, double bucket_cap_mb,
                  const config::CommunicationConfig& communication);

  // Puts the hooks on the parameters. Call once, after construction in a shared_ptr.
  void install();

  // From the next backward on, reduces buckets of fixed bounds by this hook; null: by none. At the
  // same point on every rank.
  void set_hook(std::shared_ptr<const NamedHook> hook) { wanted_hook_ = std::move(hook); }

  void begin_backward(double factor) override;
  // Reduces a backward that touched no parameter of this model on this rank, so that peers whose
  // backward did are not left waiting.
  void end_backward(bool takes_part) override;
  void abandon_backward() override;  // waits for buckets in flight

  // The state this rank carries from step to step.
  std::vector<StateTensor> state_tensors() const { return compression_.state_tensors(); }

 private:
  struct Bucket {
    at::Tensor memory;                         // slice of a group's flat gradients
    std::shared_ptr<comm::Communicator> comm;  // whose ranks' sum it becomes
    size_t first_slot = 0, end_slot = 0;
    size_t pending = 0;
    std::unique_ptr<BucketReduction> reduction = nullptr;
    std::shared_ptr<HookedBucket> hooked = nullptr;  // null: no hook reduces it
    std::unique_ptr<GradientWork> work = nullptr;    // of this backward; null: not launched
    bool complete = false;                           // memory holds the sum
  };

  void on_gradient(size_t slot) override;
  const BucketPlan& plan() const { return bounds_are_fixed() ? fixed_plan_ : tuner_.plan(); }
  // Whether something depends on which gradients share a bucket.
  bool bounds_are_fixed() const { return hook_ != nullptr || compression_.by_bucket(); }
  void set_factor(double factor);
  void make_scale();
  void use_hook(std::shared_ptr<const NamedHook> hook);
  void begin();
  void take_gradient(size_t slot);
  void launch_ready();
  void launch(Bucket& bucket);
  bool advance_earlier_buckets(size_t end);
  void complete(Bucket& bucket);
  void hand_over(Bucket& bucket);
  void finish();
  void publish_gradients();
  void cut_buckets();
  void order_buckets();
  void hook_buckets();

  const std::string model_;
  FlatParameters& flat_;
  std::shared_ptr<comm::Communicator> comm_;
  std::vector<at::Tensor> buffers_;
  GradientCompression compression_;
  BucketTuner tuner_;
  const BucketPlan fixed_plan_;
  std::shared_ptr<const NamedHook> hook_, wanted_hook_;  // in use; from the next backward on
  // factor / world_size, or with a hook factor alone; 0-dimensional: keeps the gradient's dtype.
  at::Tensor scale_;
  std::vector<Bucket> buckets_;
  std::vector<size_t> bucket_of_slot_;
  std::vector<uint8_t> taken_;                  // by slot, whether taken in this backward
  std::vector<comm::Registration> registered_;  // of the groups' flat gradients
  GradientHooks hooks_;
  size_t next_bucket_ = 0;
  size_t next_handed_ = 0;  // the next bucket to hand over to consumers
  double factor_ = 1;       // of the next average
  bool active_ = false;     // between the first hook of a backward and finish()
  bool touched_ = false;    // a hook ran since begin_backward()
  double began_ = 0;        // time of the first hook, in seconds
};

}  // namespace coupler::strategy
