#include "pipeline/runner.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

namespace coupler {
namespace {

// What a communicator that was aborted says of it: the error of the rank that was first.
Error first_error(Communicator& aborted) {
  db_op op{};
  op.kind = DB_BARRIER;
  try {
    aborted.run(op);
  } catch (const Error& error) {
    return error;
  }
  return {ErrorCode::kInternal, "an operation was run on a communicator that was aborted"};
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
              {.hint = "end the program; micro-batches that were under way are lost"});
}

// One process has no neighbours that would be out of step. All ranks are told ahead of the
// neighbours: who fails because a neighbour did finds there whose fault it was, and passes that on.
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
    // A neighbour gave up, perhaps for a rank that is far away.
    const Error first = first_error(*comm_);
    detail.rank = first.detail().rank;
    throw Error(first.code(), what, detail);
  } catch (const c10::Error& error) {
    const std::string what = fmt::format("{}: {}", place(now), error.what_without_backtrace());
    give_up(what);
    throw Error(ErrorCode::kInvalidArgument, what,
                {.rank = neighbours_.stage,
                 .hint = "run the model unsplit on a batch of this shape to see the whole error"});
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
