// Checks that loaders yield every sample of a dataset once, in an order set by seed and epoch.
#include <ATen/Functions.h>
#include <coupler/data_loader.h>

#include "section.h"

namespace coupler::self_test {
namespace {

TensorDataset numbered(int64_t samples) {
  return {at::arange(samples).to(at::kFloat), at::arange(samples)};
}

// The samples of an epoch in the order in which the job saw them.
at::Tensor epoch(Accelerator& accelerator, Findings& findings, const DataLoaderOptions& options,
                 int64_t samples) {
  auto loader = data_loader(numbered(samples), options);
  auto batches = accelerator.prepare(loader);
  std::vector<at::Tensor> seen;
  int64_t count = 0;
  for (auto& batch : batches) {
    seen.push_back(accelerator.gather_for_metrics(batch.target));
    ++count;
  }
  findings.expect(count == batches.size(), "a loader reported " + std::to_string(batches.size()) +
                                               " batches but yielded " + std::to_string(count));
  return at::cat(seen).cpu();
}

}  // namespace

void data_loaders(Accelerator& accelerator, Findings& findings) {
  const int64_t world_size = accelerator.world_size();
  for (const bool shuffle : {false, true}) {
    for (const bool split : {false, true}) {
      for (const int64_t samples : {8 * world_size, 8 * world_size + 1, 11 * world_size - 1}) {
        DataLoaderOptions options;
        options.batch_size = split ? 4 * world_size : 4;
        options.shuffle = shuffle;
        options.split_batches = split;
        options.seed = 7;
        const at::Tensor seen = epoch(accelerator, findings, options, samples);
        const std::string of = std::to_string(samples) + " samples in " +
                               (shuffle ? "shuffled" : "ordered") + (split ? ", split" : "") +
                               " batches";
        findings.expect(at::equal(std::get<0>(seen.sort()), at::arange(samples)),
                        "not each of " + of + " was seen exactly once");
        findings.expect(shuffle || at::equal(seen, at::arange(samples)), of + ": wrong order");
        findings.expect(at::equal(seen, epoch(accelerator, findings, options, samples)),
                        of + ": the same seed gives a different order");
      }
    }
  }
}

}  // namespace coupler::self_test
