// LoaderCore: the part of a DataLoader that knows nothing of the dataset's type: which samples come
// next, and where in the epoch it is. The Accelerator binds and watches loaders through it. Not
// thread-safe: one thread iterates. Behind data_loader.h; not included by users.
#pragma once

#include <c10/core/Device.h>
#include <coupler/detail/loader_view.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace coupler {

// Each has the meaning, and but for seed and shuffle the default, of its namesake in Accelerate.
struct DataLoaderOptions {
  int64_t batch_size = 1;      // of one process; of all together where split_batches
  bool shuffle = false;        // in an order that (seed, epoch) alone decide
  bool drop_last = false;      // leave out the last step where samples do not suffice
  uint64_t seed = 0;           // of shuffle
  bool split_batches = false;  // step k sees the same samples whatever the number of processes
  bool even_batches = true;    // fill the last step from the epoch's first samples
};

namespace detail {

class LoaderCore : public LoaderView {
 public:
  // `samples` is what the dataset's size() says. Throws Error(kInvalidArgument) where that is
  // nothing or 0, for a wrong option, and where no rank would get any batch.
  LoaderCore(std::optional<size_t> samples, const DataLoaderOptions& options);
  ~LoaderCore() override;

  // From now on this rank's share, onto this device. Ends an iteration under way. Throws as the
  // constructor does, and then leaves everything as it was.
  void bind(int rank, int world, at::Device device);

  int64_t size() const;  // batches an epoch yields on this rank
  at::Device device() const;
  const DataLoaderOptions& options() const;

  // The epoch iterated now or last; 0 before the first.
  int64_t epoch() const;
  void set_epoch(int64_t epoch);  // of the next start_epoch; Error(kInvalidArgument) below 0

  // Batches yielded in this epoch.
  int64_t position() const;

  bool in_loop() const override;
  uint64_t loop_number() const override;
  bool at_last_batch() const override;
  int64_t own_samples() const override;
  bool stands_in() const override { return false; }

  // Begins the next epoch and returns a number that identifies this pass.
  uint64_t start_epoch();

  // The samples of the next batch, valid until the next call; null at the end of the epoch. Throws
  // Error(kUsage) where `pass` is not the latest: two loops over one loader would share its place.
  const std::vector<size_t>* next(uint64_t pass);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace detail
}  // namespace coupler
