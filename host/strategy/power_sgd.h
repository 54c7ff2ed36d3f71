// PowerSGD (Vogels, Karimireddy, Jaggi 2019), as torch's powerSGD_hook: a gradient is taken as a
// matrix M [first dimension, the others], and what travels is P = M Q and Q = M^T P, of few
// columns. P is orthogonalised, and P Q^T, the sum over ranks, stands for M; what that lacks of
// this rank's M is added to its next gradient. Where a gradient is not finite on any rank, which
// skips the step on all, what is carried stays what it was before. Thread rule: BucketReduction's.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "strategy/bucket_reduction.h"
#include "strategy/flat_parameters.h"

namespace coupler {

// What is kept from step to step for all buckets of a model.
class PowerSgd {
 public:
  // Says in the log which tensors are reduced whole though they are matrices (on one rank).
  PowerSgd(const CommunicationConfig& config, const FlatParameters& flat, bool says);

  // Before each reduction of all buckets. The steps so far are carried, too.
  void begin();
  bool started() const;
  // Whether a parameter of these sizes is sent as two narrow matrices: where these have less than
  // half of its elements.
  bool compresses(at::IntArrayRef sizes) const;
  // Of a slot: what its reduction begins with, [others, rank], with orthogonal columns, the same on
  // every rank.
  at::Tensor first_factor(size_t slot);
  void keep(size_t slot, const at::Tensor& factor);
  int64_t rank() const { return rank_; }

  // By slot; [others, rank], undefined where a slot is reduced whole. Zero where there is none yet.
  const std::vector<at::Tensor>& factors() const { return factors_; }
  const at::Tensor& steps() const { return steps_; }  // [1] of kLong, on the host

 private:
  const int64_t rank_, start_;
  const bool warm_;
  std::vector<at::Tensor> factors_;
  at::Tensor steps_;
};

// Orthonormal columns that span at least what these do. Of what is not finite: not finite.
at::Tensor orthogonal_columns(const at::Tensor& matrix);

class PowerSgdReduction final : public BucketReduction {
 public:
  // memory: the slots' part of flat gradients, from element `begin` of the group. error: likewise.
  // All outlive this.
  PowerSgdReduction(PowerSgd& state, const std::vector<FlatSlot>& slots, size_t first_slot,
                    size_t end_slot, int64_t begin, at::Tensor memory, at::Tensor error);

  int operations() const override { return state_.started() && !matrices_.empty() ? 2 : 1; }
  db_op operation(int i) override;
  void finish() override;

 private:
  struct Matrix {
    size_t slot = 0;
    at::Tensor values, error;  // [rows, columns]
    at::Tensor p, q;           // [rows, rank] in first_, [columns, rank] in second_
  };
  db_op reduce_p();
  db_op reduce_q();

  PowerSgd& state_;
  const at::Tensor memory_;
  std::vector<Matrix> matrices_;
  std::vector<at::Tensor> whole_;       // what lies between them in memory_
  std::vector<at::Tensor> whole_sent_;  // its place in first_
  at::Tensor first_, second_;           // what travels
  bool narrow_ = false;                 // the reduction under way
  bool overflow_ = false;               // in it something was not finite
};

}  // namespace coupler
