// The batches that chains of layers are trained on, and what training one process gives.
#pragma once

#include <coupler/coupler.h>

#include "expected.h"

inline constexpr int64_t kJoinedRows = 24;

// Seeded, in doubles. The second layer of a tied chain comes again after the third.
torch::nn::Sequential make_chain();
torch::nn::Sequential make_tied_chain();
// With other initial values on other ranks: prepare gives all of them rank 0's.
torch::nn::Sequential on_own_values(coupler::Accelerator& accelerator, torch::nn::Sequential chain);

struct Rows {
  torch::Tensor inputs, targets;
};

// The same on every rank.
Rows joined_rows(int batch);
// A part of the joined rows for each rank of the group. Ranks of a context group, which would get
// the same rows and divide each sequence, divide the rows instead: the means are the same.
Rows own_rows(coupler::Accelerator& accelerator, const Rows& joined, const char* group);

torch::Tensor loss_of_rows(const torch::Tensor& output, const torch::Tensor& targets);

// batches: how many are accumulated in each step; all of them have a loss.
Expected train_on_rows_alone(torch::nn::Sequential chain, int steps, int batches = 1);
