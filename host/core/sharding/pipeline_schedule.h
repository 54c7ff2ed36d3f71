// The order in which one stage of a pipeline runs its micro-batches. Pure data and functions.
//
// Inference fills and drains (GPipe): every micro-batch forward, one after another. Training is
// 1F1B: a stage computes as many forwards ahead as there are stages after it, then alternates
// forward and backward, then runs the remaining backwards. So a stage holds the activations of at
// most as many micro-batches as there are stages from it to the last, itself included, however many
// micro-batches there are.
//
// A stage may have several parts of the model, its virtual stages: with p stages, virtual stage v
// of stage s is part v * p + s of the chain. Micro-batches then pass in groups of p: each group
// through all virtual stages before the next group. So a stage begins with work of a v-th of the
// size, and the time in which stages wait for the pipeline to fill and drain shrinks to a v-th, for
// more micro-batches in flight and more messages.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace coupler::sharding {

enum class StepKind { kForward, kBackward };

struct PipelineStep {
  StepKind kind;
  int64_t micro_batch;
  int virtual_stage = 0;  // of this stage's
  bool operator==(const PipelineStep&) const = default;
};

// 0 <= stage < stages; micro_batches >= 0; virtual_stages >= 1. With several virtual stages,
// micro_batches is a multiple of stages: in some other shapes stages would wait for each other
// forever.
std::vector<PipelineStep> inference_schedule(int stages, int64_t micro_batches,
                                             int virtual_stages = 1);
std::vector<PipelineStep> training_schedule(int stage, int stages, int64_t micro_batches,
                                            int virtual_stages = 1);

// The share of a batch's time in which a stage waits for the pipeline to fill and drain, if all
// parts take equally long and messages take no time.
double idle_share(int stages, int64_t micro_batches, int virtual_stages);

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

// Cuts a chain of layers into stages. Pure functions of names and numbers, so that every rank with
// the same input finds the same cut.

// Index of each part's first layer; begins[0] is 0. Part i has layers [begins[i], begins[i + 1]).
// There are stages * virtual_stages parts; part i is on stage i % stages.
using StageBegins = std::vector<size_t>;

// Each part after the first begins at one of the named layers; the name of a module that contains
// layers ("2" of "2.0", "2.1") stands for its first one. Names may come in any order. Throws
// Error(kInvalidArgument) if there is not one name fewer than parts; if a layer does not exist,
// listing the nearest name and all layers; if one is the first layer or is named twice.
StageBegins cut_at(const std::vector<std::string>& layers, const std::vector<std::string>& points,
                   int stages, int virtual_stages = 1);

// The cut that minimizes the cost of the most expensive part; among equal ones, the one whose
// costs are most even (the least sum of squares). Every part has a layer. Throws
// Error(kInvalidArgument) if there are fewer layers than parts.
StageBegins balanced_cut(const std::vector<double>& costs, int stages, int virtual_stages = 1);

}  // namespace coupler::sharding
