// LoaderCore::State: what the parts of LoaderCore share. Used by the loop's thread, but for
// request_of() and what it reads, which workers call and nothing changes while they live.
#pragma once

#include <coupler/detail/loader_core.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "data/batch_plan.h"
#include "data/dispatch.h"
#include "data/workers.h"

namespace coupler::detail {

struct LoaderCore::State {
  State(BatchSource& batch_source, const DataLoaderOptions& given);

  // The plan of an epoch from sample `start` on. Throws where no rank would get a batch.
  BatchPlan plan_from(size_t start) const;
  // A loop begins there next.
  void plan_next(size_t start);
  bool even_batches() const { return even ? *even : options.even_batches; }

  // What step `step` asks of the source.
  void request_of(size_t step, StepRequest& request) const;
  // Reads a step on a worker (0: this thread), with errors that name it.
  StepRead read(size_t worker, size_t step, size_t slot, StepRequest& request);

  // A loop.
  void begin();
  void advance();
  void finish() noexcept;
  // What this rank has in a step. A stream's, or what rank 0 sent, lies in its slot then; a
  // map-style dataset is read as late as possible, since that it has the step is known anyway.
  StepRead look(size_t step);
  StepRead local(size_t step);
  void require_samples(const StepRead& first) const;
  void agree_on_first();
  size_t slot_of(size_t step) const { return step % slots; }

  BatchSource& source;
  DataLoaderOptions options;
  std::optional<size_t> samples;  // nothing: a stream

  int rank = 0;
  int world = 1;
  at::Device device = at::kCPU;
  std::shared_ptr<LoaderPeers> peers;
  bool joining = false;      // of the next loop
  std::optional<bool> even;  // in place of options.even_batches
  BatchPlan plan;            // of the loop under way, or of the next one
  size_t start = 0;          // the first sample of it

  std::function<void()> end_of_body;  // null: nobody asks

  int64_t epoch = 0;
  int64_t next_epoch = 0;
  uint64_t pass = 0;
  bool looping = false;
  uint64_t loop_number = 0;

  // The loop under way:
  bool joined = false;  // the ranks are kept in step
  bool fill = false;    // the last step is filled
  size_t position = 0;  // batches yielded
  StepRead upcoming;    // what comes behind them, on this rank
  bool more = false;    // whether anything comes, on any rank where joined
  size_t rows = 0;      // of the batch yielded last
  size_t own = 0;       // of them
  bool stands_in = false;
  std::vector<size_t> order;       // where it is shuffled
  std::optional<BatchPlan> whole;  // of what rank 0 reads for all
  std::unique_ptr<Dispatcher> dispatcher;
  StepRequest request;  // of this thread
  size_t slots = 1;
  std::vector<StepRead> ready;  // what lies in each slot
  std::vector<StepRequest> worker_requests;
  std::unique_ptr<Workers> workers;  // last: ends before the rest
};

}  // namespace coupler::detail
