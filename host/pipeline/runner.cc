#include "pipeline/runner.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

namespace coupler {
namespace {

bool is_loss(ErrorCode code) { return code == ErrorCode::kPeerLost || code == ErrorCode::kTimeout; }

// Whether it may come from what became of another rank.
bool is_of_peers(ErrorCode code) { return is_loss(code) || code == ErrorCode::kAborted; }

// As what others hear of it: that a rank is lost is the same to all, while the mistake of one
// rank's layer is to the others that it gave up.
ErrorCode told_as(ErrorCode code) { return is_loss(code) ? code : ErrorCode::kAborted; }

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
// neighbours: who fails because a neighbour did then finds whose fault it was, and passes that on.
Error PipelineRunner::give_up(const Error& why) {
  if (neighbours_.stages == 1) return why;
  failed_ = why.what();
  Error first = comm_->abort(why);
  neighbours_.abort(first);
  return first;
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
    ErrorDetail detail = error.detail();
    detail.hint.clear();  // it is in the message
    const std::string what = fmt::format("{}: {}", place(now), error.what());
    const Error first = give_up(Error(told_as(error.code()), what, detail));
    if (!is_of_peers(error.code())) throw Error(error.code(), what, detail);
    // However far away the lost rank is.
    detail.rank = first.detail().rank;
    throw Error(first.code(), what, detail);
  } catch (const c10::Error& error) {
    const std::string what = fmt::format("{}: {}", place(now), error.what_without_backtrace());
    give_up(Error(ErrorCode::kAborted, what, {.rank = neighbours_.stage}));
    throw Error(ErrorCode::kInvalidArgument, what,
                {.rank = neighbours_.stage,
                 .hint = "run the model unsplit on a batch of this shape to see the whole error"});
  } catch (const std::exception& error) {
    give_up(Error(ErrorCode::kAborted, fmt::format("{}: {}", place(now), error.what()),
                  {.rank = neighbours_.stage}));
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
