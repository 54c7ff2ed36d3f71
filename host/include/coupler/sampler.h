// Sampler and BatchSampler: a program's own choice of the samples of an epoch, for a map-style
// dataset in a DataLoader.
//
//   struct Reversed : coupler::Sampler {
//     explicit Reversed(size_t samples) : count(samples) {}
//     size_t size() const override { return count; }
//     std::vector<size_t> indices() override {
//       std::vector<size_t> order(count);
//       std::iota(order.rbegin(), order.rend(), size_t{0});
//       return order;
//     }
//     size_t count;
//   };
//   auto loader = coupler::data_loader(
//       dataset, {.batch_size = 32, .sampler = std::make_shared<Reversed>(1000)});
//
// A sampler chooses for all ranks together, and the loader gives each rank its share, as it does
// with its own orders. So every rank's sampler must give the same: whatever is random must depend
// on the epoch or on saved state, not on the rank. The loader compares them at the start of every
// epoch, and every rank gets an Error that names a rank that differs. (With dispatch_batches, only
// rank 0's is used.)
//
// Called by the thread that runs the loop, never by workers. What a call throws leaves the loop.
#pragma once

#include <coupler/fwd.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace coupler {

// What Sampler and BatchSampler have in common. Do not derive from it directly.
class SamplerBase {
 public:
  virtual ~SamplerBase() = default;

  // How many indices or batches the next epoch has over all ranks: at least one for each rank. May
  // differ from epoch to epoch; asked after set_epoch, and for DataLoader::size() also before.
  virtual size_t size() const = 0;

  // Called at the start of every epoch, which counts from 0.
  virtual void set_epoch(int64_t epoch) { static_cast<void>(epoch); }

  // For what an epoch depends on besides its number, such as a random generator or weights that
  // training changes. save() is called before an epoch is chosen and must not change anything;
  // load() makes the next epoch the one that followed that save(), so that a run that resumes
  // within an epoch gets the same samples. save() right after load() must give the same values.
  // Without them, an epoch depends on its number alone.
  virtual void save(StateDict& state) const { static_cast<void>(state); }
  virtual void load(const StateDict& state) { static_cast<void>(state); }
};

// Gives the samples of an epoch, which the loader cuts into batches.
class Sampler : public SamplerBase {
 public:
  // The next epoch's samples as indices below the dataset's size, in order: size() of them. Samples
  // may be left out or repeated.
  virtual std::vector<size_t> indices() = 0;
};

// Gives the batches of an epoch, of one size or of different ones (for instance to put samples of
// similar length together). The ranks take them in turn, as Accelerate's BatchSamplerShard defines
// it: with N ranks, rank r gets batches r, r + N, r + 2N, …
class BatchSampler : public SamplerBase {
 public:
  // The next epoch's batches of indices below the dataset's size: size() of them, none empty.
  virtual std::vector<std::vector<size_t>> batches() = 0;

  // The size of every batch but the last, which may be smaller; 0 if they differ in size.
  // If the last step is incomplete, even_batches fills it with the epoch's first samples, or with
  // its first batches if they differ in size. split_batches and dispatch_batches need one size.
  virtual size_t batch_size() const { return 0; }
};

}  // namespace coupler
