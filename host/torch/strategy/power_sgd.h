// PowerSGD (Vogels, Karimireddy, Jaggi 2019), like torch's powerSGD_hook: a gradient is treated as
// a matrix M [first dimension, the others], and only P = M Q and Q = M^T P, of few columns, are
// reduced. P is orthogonalized, and P Q^T, the sum over ranks, approximates M; what is lost of this
// rank's M is added to its next gradient. If a gradient is not finite on any rank, which skips the
// step on all, the carried state does not change. Threads: as for BucketReduction.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "strategy/bucket_reduction.h"
#include "strategy/flat_parameters.h"

namespace coupler::strategy {

// The state kept from step to step for all buckets of a model.
class PowerSgd {
 public:
  // says: log which matrices are reduced uncompressed (set on one rank).
  PowerSgd(const config::CommunicationConfig& config, const FlatParameters& flat, bool says);

  // Call before each reduction of all buckets. Counts the steps, which are carried, too.
  void begin() { steps_.add_(1); }
  bool started() const { return *steps_.const_data_ptr<int64_t>() >= start_; }
  // Whether a parameter of these sizes is sent as two narrow matrices, i.e. whether they have less
  // than half of its elements.
  bool compresses(at::IntArrayRef sizes) const;
  // The factor that a slot's reduction begins with: [others, rank], with orthogonal columns, the
  // same on every rank.
  at::Tensor first_factor(size_t slot);
  void keep(size_t slot, const at::Tensor& factor) { factors_[slot].copy_(factor); }
  int64_t rank() const { return rank_; }

  // By slot: [others, rank]; undefined if it is not compressed, zeros before its first reduction.
  const std::vector<at::Tensor>& factors() const { return factors_; }
  const at::Tensor& steps() const { return steps_; }  // [1] of kLong, on the CPU

 private:
  const int64_t rank_, start_;
  const bool warm_;
  std::vector<at::Tensor> factors_;
  at::Tensor steps_;
};

class PowerSgdReduction final : public BucketReduction {
 public:
  // memory: the slots' part of the flat gradients, from element `begin` of the group. error:
  // likewise. state and slots must outlive this.
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
  std::vector<at::Tensor> whole_;       // the parts of memory_ between the matrices
  std::vector<at::Tensor> whole_sent_;  // their places in first_
  at::Tensor first_, second_;           // buffers of the two collectives
  bool narrow_ = false;                 // whether the current reduction compresses
  bool overflow_ = false;               // whether something in it was not finite
};

}  // namespace coupler::strategy
