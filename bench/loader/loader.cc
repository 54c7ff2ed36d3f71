// Iterates over 60000×784 floats in batches of 64 in one process and prints the median seconds per
// epoch for each order: "sequential S", "shuffled S". bench loader [EPOCHS]. The counterpart is
// bench/python/loader_epochs.py.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <coupler/data_loader.h>
#include <coupler/error.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "program.h"

namespace coupler::bench::loader {
namespace {

constexpr int64_t kSamples = 60000, kValues = 784, kBatch = 64;

double epoch_of(coupler::DataLoader<coupler::TensorDataset>& loader) {
  const auto begin = std::chrono::steady_clock::now();
  int64_t samples = 0;
  for (auto& batch : loader) samples += batch.data.size(0);
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
  if (samples < kSamples)
    throw coupler::Error(coupler::ErrorCode::kInternal, "an epoch is missing samples");
  return time.count();
}

}  // namespace

int program(int argc, char** argv) {
  const int epochs = argc > 1 ? std::atoi(argv[1]) : 3;
  if (epochs < 1)
    throw coupler::Error(coupler::ErrorCode::kUsage, "usage: bench loader [EPOCHS]",
                         {.subject = "EPOCHS", .hint = "pass 1 or more"});
  at::set_num_threads(1);
  const coupler::TensorDataset dataset(at::rand({kSamples, kValues}),
                                       at::randint(10, {kSamples}, at::kLong));
  for (const bool shuffle : {false, true}) {
    auto loader = coupler::data_loader(dataset, {.batch_size = kBatch, .shuffle = shuffle});
    epoch_of(loader);  // warms memory and caches
    std::vector<double> seconds;
    for (int epoch = 0; epoch < epochs; ++epoch) seconds.push_back(epoch_of(loader));
    std::nth_element(seconds.begin(), seconds.begin() + epochs / 2, seconds.end());
    std::printf("%s %.6f\n", shuffle ? "shuffled" : "sequential",
                seconds[static_cast<size_t>(epochs / 2)]);
  }
  return 0;
}

const Registration kRegistration("loader", program);

}  // namespace coupler::bench::loader
