// PowerSGD (Vogels, Karimireddy, Jaggi 2019), like torch's powerSGD_hook: a gradient is treated as
// a matrix M [first dimension, the others], and only P = M Q and Q = M^T P, of few columns, are
// reduced. P is orthogonalized, and P Q^T, the sum over ranks, approximates M; what is lost of this
// rank's M is added to its next gradient. If a gradient is not finite on any rank, which skips the
// step on all, the carried state does not change. Batched, like torch's batched_powerSGD_hook, M is
// a whole bucket as one square matrix with zeros at its end. Threads: as for BucketReduction.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "strategy/bucket_reduction.h"
#include "strategy/flat_parameters.h"

namespace coupler::strategy {

// The state kept from step to step for all buckets of a model. A matrix is known by its slot, or
// batched by its bucket's first one.
class PowerSgd {
 public:
  // says: log which matrices are reduced uncompressed (set on one rank).
  PowerSgd(const config::CommunicationConfig& config, const FlatParameters& flat, bool says);

  // Call before each reduction of all buckets. Counts the steps, which are carried, too.
  void begin() { steps_.add_(1); }
  bool started() const { return *steps_.const_data_ptr<int64_t>() >= start_; }
  bool is_batched() const { return batched_; }
  bool has_feedback() const { return feedback_; }
  // The type in which factors are sent.
  at::ScalarType sent_type() const { return sent_type_; }

  // Batched: makes the state of a bucket of kFloat, unless it has the same size as before.
  void add_bucket(size_t first_slot, const at::Tensor& memory);

  // The factor that a matrix's reduction begins with: [columns, rank], with orthogonal columns, the
  // same on every rank.
  at::Tensor first_factor(size_t slot);
  void keep(size_t slot, const at::Tensor& factor) { factors_[slot].copy_(factor); }
  // Orthonormal columns that span at least the matrix's columns, or almost so with an epsilon. Not
  // finite if the matrix is not.
  at::Tensor orthogonal_columns(const at::Tensor& matrix) const;

  // By slot: [columns, rank]; undefined if it is not compressed, zeros before its first reduction.
  const std::vector<at::Tensor>& factors() const { return factors_; }
  // By slot, batched with feedback: what is carried of the square matrix; otherwise undefined.
  const std::vector<at::Tensor>& bucket_errors() const { return bucket_errors_; }
  const at::Tensor& steps() const { return steps_; }  // [1] of kLong, on the CPU

 private:
  // The rank of a matrix's factors if they are so much smaller that it is compressed; otherwise 0.
  int64_t rank_for(int64_t rows, int64_t columns) const;
  void describe_uncompressed(const FlatParameters& flat) const;

  const int64_t rank_, start_;
  const bool warm_, feedback_, batched_;
  const double min_rate_, epsilon_;
  const at::ScalarType sent_type_;
  std::vector<at::Tensor> factors_, bucket_errors_;
  at::Tensor steps_;
};

class PowerSgdReduction final : public BucketReduction {
 public:
  // memory: the slots' part of the flat gradients. error: of the same size, carried; not used if
  // batched or without feedback. state and slots must outlive this.
  PowerSgdReduction(PowerSgd& state, const std::vector<FlatSlot>& slots, size_t first_slot,
                    size_t end_slot, at::Tensor memory, const at::Tensor& error);

  int operations() const override { return state_.started() && !matrices_.empty() ? 2 : 1; }
  db_op operation(int i) override;
  void finish() override;

 private:
  struct Matrix {
    size_t slot = 0;
    at::Tensor values, error;  // [rows, columns]; error may be undefined
    at::Tensor p, q;           // [rows, rank] in first_, [columns, rank] in second_
  };
  void add_matrices(const std::vector<FlatSlot>& slots, size_t first_slot, size_t end_slot,
                    const at::Tensor& error);
  void add_square(size_t slot);
  void make_buffers();
  db_op reduce_p();
  db_op reduce_q();

  PowerSgd& state_;
  const at::Tensor memory_;
  std::vector<Matrix> matrices_;
  std::vector<at::Tensor> whole_;         // the parts of memory_ between the matrices
  at::Tensor square_;                     // batched: the elements of the matrix
  std::vector<at::Tensor> padding_;       // likewise: the parts of memory_ that belong to no slot
  std::vector<at::Tensor> whole_places_;  // of whole_ in first_
  at::Tensor first_, second_;             // values of the two collectives
  at::Tensor first_narrow_, second_narrow_;  // the same as they are sent; undefined: as they are
  bool narrow_ = false;                      // whether the current reduction compresses
  bool overflow_ = false;                    // whether something in it was not finite
};

}  // namespace coupler::strategy
