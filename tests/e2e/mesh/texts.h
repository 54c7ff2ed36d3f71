// The batches that models of divided_net.h are trained on, and what training one process gives.
#pragma once

#include "divided_net.h"
#include "expected.h"

inline constexpr int64_t kJoinedTexts = 24;

struct Texts {
  torch::Tensor ids, targets;  // [rows, tokens]
};

// The same on every rank.
Texts joined_texts(int step);
// The rows of this rank among those of the group.
Texts own_texts(coupler::Accelerator& accelerator, const Texts& joined, const char* group);

torch::Tensor loss_of_texts(DividedNet& net, const Texts& texts);

Expected train_on_texts_alone(int steps);
