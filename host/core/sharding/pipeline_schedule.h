// The order in which one stage of a pipeline runs its micro-batches. Pure data and functions.
//
// Inference fills and drains (GPipe): every micro-batch forward, one after another. Training is
// 1F1B: a stage computes as many forwards ahead as there are stages after it, then alternates
// forward and backward, then runs the remaining backwards. So a stage holds the activations of at
// most as many micro-batches as there are stages from it to the last, itself included, however many
// micro-batches there are.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace coupler {

enum class StepKind { kForward, kBackward };

struct PipelineStep {
  StepKind kind;
  int64_t micro_batch;
  bool operator==(const PipelineStep&) const = default;
};

// 0 <= stage < stages; micro_batches >= 0.
std::vector<PipelineStep> inference_schedule(int64_t micro_batches);
std::vector<PipelineStep> training_schedule(int stage, int stages, int64_t micro_batches);

// The rows of a batch as micro-batches, in order: if they do not divide evenly, the first ones have
// one row more. 1 <= count <= rows.
class MicroBatches {
 public:
  MicroBatches(int64_t rows, int64_t count) : rows_(rows), count_(count) {}
  int64_t rows() const { return rows_; }
  int64_t count() const { return count_; }
  int64_t begin(int64_t i) const { return i * (rows_ / count_) + std::min(i, rows_ % count_); }
  int64_t size(int64_t i) const { return begin(i + 1) - begin(i); }

 private:
  int64_t rows_, count_;
};

}  // namespace coupler
