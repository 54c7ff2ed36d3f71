// LoaderCore: the part of a DataLoader that is independent of the dataset's type: which samples
// come next, which worker reads them, and the loop's position in the epoch. The Accelerator binds
// and observes loaders through it. Not thread-safe: one thread iterates. Internal to data_loader.h;
// not included by users.
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
  // The source is borrowed and must outlive it. Throws Error(kInvalidArgument) for a map-style
  // dataset with unknown size or without samples, for an invalid option, and if no rank would get a
  // batch.
  LoaderCore(BatchSource& source, const DataLoaderOptions& options);
  ~LoaderCore() override;

  // Yields this rank's share on this device from now on; peers is null for a single process. Ends a
  // running iteration. Throws as the constructor does and for fewer samples than processes; nothing
  // has changed then.
  void bind(int rank, int world, at::Device device, std::shared_ptr<LoaderPeers> peers);

  // Number of batches of the current or next loop on this rank. Map-style only.
  int64_t size() const;
  const DataLoaderOptions& options() const;

  // The current or last epoch; 0 before the first.
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

  // Starts the next epoch and returns a number that identifies this pass.
  uint64_t start_epoch();

  // Makes the next batch the source's current one; returns false at the end of the epoch. Throws
  // Error(kUsage) if `pass` is not the latest: two loops over one loader would share its position.
  bool next(uint64_t pass);

  // Called when the loop ends or is left early; does nothing if `pass` is not the latest.
  void end(uint64_t pass) noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace coupler::detail
