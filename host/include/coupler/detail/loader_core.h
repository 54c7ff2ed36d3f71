// LoaderCore: the part of a DataLoader that knows nothing of the dataset's type: which samples come
// next, who reads them, and where in the epoch the loop is. The Accelerator binds and watches
// loaders through it. Not thread-safe: one thread iterates. Behind data_loader.h; not included by
// users.
#pragma once

#include <c10/core/Device.h>
#include <coupler/data_loader_options.h>
#include <coupler/detail/batch_source.h>
#include <coupler/detail/loader_peers.h>
#include <coupler/detail/loader_view.h>
#include <coupler/loader_cursor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

namespace coupler::detail {

class LoaderCore : public LoaderView {
 public:
  // The source must outlive it. Throws Error(kInvalidArgument) for a map-style dataset that does
  // not know its size or is empty, for a wrong option, and where no rank would get any batch.
  LoaderCore(BatchSource& source, const DataLoaderOptions& options);
  ~LoaderCore() override;

  // From now on this rank's share, onto this device; peers is null where there are no others. Ends
  // an iteration under way. Throws as the constructor does and for fewer samples than processes,
  // and then leaves everything as it was.
  void bind(int rank, int world, at::Device device, std::shared_ptr<LoaderPeers> peers);

  // Batches of the loop under way, or of the next one, on this rank. Map-style only.
  int64_t size() const;
  const DataLoaderOptions& options() const;

  // The epoch iterated now or last; 0 before the first.
  int64_t epoch() const;
  void set_epoch(int64_t epoch);  // of the next start_epoch; Error(kInvalidArgument) below 0

  // See DataLoader.
  LoaderCursor state() const override;
  void load_state(const LoaderCursor& cursor) override;
  void skip_first_batches(int64_t count);

  // Batches yielded in this loop.
  int64_t position() const;

  void at_end_of_body(std::function<void()> call) override;
  bool in_loop() const override;
  uint64_t loop_number() const override;
  bool at_last_batch() const override;
  int64_t own_samples() const override;
  int64_t batch_samples() const override;
  bool stands_in() const override;
  void join(bool on, std::optional<bool> even_batches) override;

  // Begins the next epoch and returns a number that identifies this pass.
  uint64_t start_epoch();

  // Makes the next batch the source's current one; false at the end of the epoch. Throws
  // Error(kUsage) where `pass` is not the latest: two loops over one loader would share its place.
  bool next(uint64_t pass);

  // The loop is over or broken off; nothing where `pass` is not the latest.
  void end(uint64_t pass) noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace coupler::detail
