// GradientSync: what a backward does with the gradients of one model: it averages them over the
// ranks, or leaves each rank its own. Used by the thread that runs backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "strategy/flat_parameters.h"
#include "strategy/gradient_hooks.h"

namespace coupler::strategy {

// GradientConsumer: uses gradients while backward still runs (an optimizer that works in backward).
// It receives each gradient as soon as no rank can add to it.
class GradientConsumer {
 public:
  // An averaged backward of the model begins. Throws Error if it must not.
  virtual void on_backward_begin() = 0;
  // Slots [first, end) have their gradients in .grad. Resets .grad of those it uses.
  virtual void on_gradients_ready(FlatParameters& flat, size_t first, size_t end) = 0;

 protected:
  ~GradientConsumer() = default;
};

class GradientSync {
 public:
  GradientSync() = default;
  virtual ~GradientSync() = default;
  GradientSync(const GradientSync&) = delete;
  GradientSync& operator=(const GradientSync&) = delete;

  // Whether the next backward averages gradients over ranks (the default) or only accumulates.
  void set_sync(bool sync) { sync_ = sync; }
  bool sync() const { return sync_; }
  // Whether it does: not with LocalSGD.
  virtual bool averages() const { return sync_; }

  // Call around a backward that the model takes part in on every rank, even if this rank's reaches
  // none of its parameters. If it is averaged, all accumulated gradients are multiplied by factor,
  // the same on every rank. takes_part: false if it can reach none of them on any rank; then
  // nothing is reduced. Collective.
  virtual void begin_backward(double factor) = 0;
  virtual void end_backward(bool takes_part) = 0;
  // Call after a backward that threw: discards its work.
  virtual void abandon_backward() = 0;

  // Whether gradients of an earlier backward may wait for one that averages; the same on all ranks.
  void set_waiting(bool waiting) { waiting_ = waiting; }
  bool has_waiting() const { return waiting_; }

  // Gives gradients to the consumer while backward runs, for as long as it lives.
  virtual void add_consumer(const std::shared_ptr<GradientConsumer>& consumer) {
    consumers_.push_back(consumer);
  }
  // Whether there is a consumer; then gradients may be gone after a backward.
  bool has_consumers() const;

 protected:
  void notify_backward_begin() const;
  // A parameter whose gradient is used counts as written in place, so LibTorch reports an error if
  // this backward still needs its old value.
  void notify_gradients_ready(FlatParameters& flat, size_t first, size_t end) const;

 private:
  std::vector<std::weak_ptr<GradientConsumer>> consumers_;
  bool sync_ = true;
  bool waiting_ = false;
};

// LocalGradients: leaves gradients to the rank that computed them: for a single process, and for
// ranks that train independently.
class LocalGradients final : public GradientSync,
                             public GradientListener,
                             public std::enable_shared_from_this<LocalGradients> {
 public:
  // flat must outlive this. Owned by a shared_ptr.
  explicit LocalGradients(FlatParameters& flat);

  bool averages() const override { return false; }
  void begin_backward(double factor) override { factor_ = factor; }
  void end_backward(bool takes_part) override;
  void abandon_backward() override {
    active_ = false;
    factor_ = 1;
  }
  void add_consumer(const std::shared_ptr<GradientConsumer>& consumer) override;

 private:
  void on_gradient(size_t slot) override;

  FlatParameters& flat_;
  std::vector<uint8_t> used_;             // by slot, whether used in this backward
  std::unique_ptr<GradientHooks> hooks_;  // null: no consumer so far
  double factor_ = 1;                     // of the current backward
  bool active_ = false;                   // between the first hook of a backward and its end
};

}  // namespace coupler::strategy
