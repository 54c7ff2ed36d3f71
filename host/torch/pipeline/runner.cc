#include "pipeline/runner.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

namespace coupler {
namespace {

// The abort error of an aborted communicator: that of the first rank that failed.
Error first_error(Communicator& aborted) {
  db_op op{};
  op.kind = DB_BARRIER;
  try {
    aborted.run(op);
  } catch (const Error& error) {
    return error;
  }
  return {ErrorCode::kInternal, "an operation succeeded on an aborted communicator"};
}

}  // namespace

PipelineRunner::PipelineRunner(std::shared_ptr<Communicator> stages,
                               std::vector<PipelineLayer> layers, c10::Device device)
    : comm_(std::move(stages)),
      layers_(std::move(layers)),
      device_(device),
      neighbours_(*comm_, device) {}

void PipelineRunner::require_whole() const {
  if (!failed_) return;
  throw Error(ErrorCode::kAborted, "the pipeline ended with an earlier error: " + *failed_,
              {.hint = "exit the program; micro-batches in flight are lost"});
}

// A single process has no neighbors to get out of step with. Aborts the whole pipeline before the
// links: a rank that fails because of a neighbor then finds the original error and passes it on.
void PipelineRunner::give_up(const std::string& why) {
  if (neighbours_.stages == 1) return;
  failed_ = why;
  comm_->abort(why);
  neighbours_.abort(first_error(*comm_).what());
}

StageBatch PipelineRunner::run(const BatchWork& work, const std::vector<PipelineStep>& steps) {
  require_whole();
  StageBatch batch(layers_, neighbours_, device_, work);
  const auto place = [&](const PipelineStep& step) {
    return fmt::format("pipeline stage {} of {} (rank {}), {} of micro-batch {} of {}",
                       neighbours_.stage, neighbours_.stages, neighbours_.stage,
                       step.kind == StepKind::kForward ? "forward" : "backward", step.micro_batch,
                       work.cut.count());
  };
  PipelineStep now = steps.front();
  try {
    for (const PipelineStep& step : steps) {
      now = step;
      batch.run(step);
    }
    batch.finish();
  } catch (const Error& error) {
    const std::string what = fmt::format("{}: {}", place(now), error.what());
    give_up(what);
    ErrorDetail detail = error.detail();
    detail.hint.clear();  // it is in the message
    if (neighbours_.stages == 1 || error.code() != ErrorCode::kAborted)
      throw Error(error.code(), what, detail);
    // A neighbor gave up, perhaps because of a rank further away.
    const Error first = first_error(*comm_);
    detail.rank = first.detail().rank;
    throw Error(first.code(), what, detail);
  } catch (const c10::Error& error) {
    const std::string what = fmt::format("{}: {}", place(now), error.what_without_backtrace());
    give_up(what);
    throw Error(ErrorCode::kInvalidArgument, what,
                {.rank = neighbours_.stage,
                 .hint = "run the unsplit model on a batch of this shape to see the full error"});
  } catch (const std::exception& error) {
    give_up(fmt::format("{}: {}", place(now), error.what()));
    throw;
  }
  return batch;
}

Values PipelineRunner::infer(const BatchWork& work) {
  const at::NoGradGuard no_grad;
  return run(work, inference_schedule(work.cut.count())).outputs();
}

double PipelineRunner::train(const BatchWork& work) {
  return run(work, training_schedule(neighbours_.stage, neighbours_.stages, work.cut.count()))
      .loss();
}

}  // namespace coupler
