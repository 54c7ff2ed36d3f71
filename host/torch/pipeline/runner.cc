#include "pipeline/runner.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <utility>

#include "tensors/autocast_state.h"
#include "tensors/tensor_ops.h"

namespace coupler::pipelining {

using sharding::PipelineStep;
using sharding::StepKind;

namespace {

using Schedule = std::vector<PipelineStep>;

// Translates the ranks in an error of an operation between two stages into the job's ranks.
std::string in_job(const std::string& text, int own, int other) {
  // "rank 1 reported: " begins the neighbor's error when it gave up.
  const std::string reported = " reported: ";
  const size_t end = text.find(reported);
  if (text.starts_with("rank ") && end != std::string::npos && end < 8) {
    return "it reported: " + text.substr(end + reported.size());
  }
  return fmt::format("over a communicator whose ranks 0 and 1 are the job's {} and {}: {}",
                     std::min(own, other), std::max(own, other), text);
}

template <class Action>
auto with_neighbor(const char* what, int own, int other, const Action& action) {
  try {
    return action();
  } catch (const Error& error) {
    ErrorDetail detail = error.detail();
    detail.rank = other;
    detail.hint.clear();  // it is in the message
    throw Error(error.code(),
                fmt::format("{} stage {} (rank {}): {}", what, other, other,
                            in_job(error.what(), own, other)),
                detail);
  }
}

ValueMeta gradients_of(const Values& values) {
  ValueMeta meta = meta_of(values);
  std::erase_if(meta, [](const TensorMeta& tensor) { return !tensor.wants_gradient; });
  return meta;
}

}  // namespace

// One batch passing through one stage. Sends are asynchronous, and the receive of the next
// micro-batch is posted before this one is computed.
class StageBatch {
 public:
  // All arguments must outlive it.
  StageBatch(const StageLayers& layers, StageLinks& links, c10::Device device,
             const BatchWork& work, Schedule schedule)
      : layers_(layers),
        links_(links),
        device_(device),
        work_(work),
        schedule_(std::move(schedule)),
        in_flight_(layers.size()) {
    links_.begin(work.signature);
  }

  // Runs one step of the schedule; false after the last.
  bool run_next() {
    if (at_ == schedule_.size()) return false;
    now().kind == StepKind::kForward ? forward(now()) : backward(now());
    ++at_;
    return true;
  }

  // The step that runs, or the last one.
  const PipelineStep& now() const { return schedule_[std::min(at_, schedule_.size() - 1)]; }

  // Waits until all of this stage's sends are complete.
  void finish() {
    if (links_.values_out != nullptr) {
      with_neighbor("sending activations to", links_.stage, links_.after(),
                    [&] { links_.values_out->finish(); });
    }
    if (links_.gradients_out != nullptr) {
      with_neighbor("sending gradients to", links_.stage, links_.before(),
                    [&] { links_.gradients_out->finish(); });
    }
  }

  // On the last stage: the outputs of an inference, concatenated along dimension 0.
  Values outputs() const {
    Values result;
    for (size_t i = 0; !results_.empty() && i < results_[0].size(); ++i) {
      std::vector<at::Tensor> parts;
      for (const Values& values : results_) parts.push_back(values.at(i));
      if (parts[0].dim() == 0) {
        throw Error(
            ErrorCode::kInvalidArgument,
            "the outputs of micro-batches are concatenated along dimension 0, but the model "
            "returns a tensor without dimensions",
            {.hint = "return one row for each row of the input"});
      }
      result.push_back(parts.size() == 1 ? parts[0] : at::cat(parts));
    }
    return result;
  }

  // Likewise: the loss of the batch, without scale.
  double loss() const { return loss_.defined() ? loss_.item<double>() : 0; }

  const BatchWork& work() const { return work_; }

 private:
  struct InFlight {  // between a micro-batch's forward and its backward
    int64_t micro_batch = 0;
    Values inputs, outputs;
    at::Tensor loss;
  };

  const std::vector<PipelineLayer>& layers_of(const PipelineStep& step) const {
    return layers_[static_cast<size_t>(step.virtual_stage)];
  }
  std::deque<InFlight>& in_flight_of(const PipelineStep& step) {
    return in_flight_[static_cast<size_t>(step.virtual_stage)];
  }
  std::pair<int, int64_t> form_of(const PipelineStep& step) const {
    return {step.virtual_stage, work_.cut.size(step.micro_batch)};
  }
  Values chunks(const Values& batch, int64_t micro_batch) const {
    Values result;
    for (const at::Tensor& tensor : batch) {
      result.push_back(
          tensor.narrow(0, work_.cut.begin(micro_batch), work_.cut.size(micro_batch)).to(device_));
    }
    return result;
  }

  // Whether the backward of this forward's micro-batch is the next step.
  bool backward_is_next() const {
    const PipelineStep& step = now();
    if (at_ + 1 == schedule_.size()) return false;
    const PipelineStep& next = schedule_[at_ + 1];
    return next.kind == StepKind::kBackward && next.micro_batch == step.micro_batch &&
           next.virtual_stage == step.virtual_stage;
  }

  double weight(int64_t micro_batch) const {
    if (!work_.mean_loss) return 1;
    return static_cast<double>(work_.cut.size(micro_batch)) / static_cast<double>(work_.cut.rows());
  }

  void forward(const PipelineStep& step) {
    const int64_t micro_batch = step.micro_batch;
    InFlight flight{.micro_batch = micro_batch};
    flight.inputs = links_.is_first(step.virtual_stage) ? chunks(work_.inputs, micro_batch)
                                                        : receive_values(step);
    flight.outputs = flight.inputs;
    for (const PipelineLayer& layer : layers_of(step)) {
      flight.outputs = run_layer(layer, flight.outputs);
    }
    if (!links_.is_last(step.virtual_stage)) {
      send_values(flight.outputs, step);
    } else if (!work_.training) {
      results_.push_back(std::move(flight.outputs));
    } else {
      flight.loss = work_.loss(flight.outputs, chunks(work_.targets, micro_batch));
      if (!flight.loss.defined() || flight.loss.numel() != 1) {
        throw Error(ErrorCode::kInvalidArgument,
                    "the loss function of a pipeline must return one number for each micro-batch",
                    {.subject = "loss",
                     .hint = "reduce the loss to its mean (or its sum, with loss_reduction = "
                             "LossReduction::kSum)"});
      }
      const at::Tensor counted =
          flight.loss.detach().reshape({}).to(at::kDouble) * weight(micro_batch);
      loss_ = loss_.defined() ? loss_ + counted : counted;
      flight.outputs.clear();
    }
    if (!work_.training) return;
    if (!backward_is_next() && work_.on_forward_left) work_.on_forward_left();
    in_flight_of(step).push_back(std::move(flight));
    expect_gradients();
  }

  Values receive_values(const PipelineStep& step) {
    StageLink& link = *links_.values_in;
    StageLinks::Forms& metas = links_.metas_in;
    return with_neighbor("waiting for the activations of", links_.stage, links_.before(), [&] {
      const auto known = metas.find(form_of(step));
      if (known == metas.end()) {
        link.expect(metas[form_of(step)] = link.receive_meta());
      } else if (!link.expects()) {
        link.expect(known->second);
      }
      Values values = link.receive();
      const ValueMeta& meta = metas[form_of(step)];
      for (size_t i = 0; i < values.size(); ++i) {
        if (meta[i].wants_gradient && work_.training) values[i].requires_grad_(true);
      }
      const auto next = std::find_if(schedule_.begin() + static_cast<std::ptrdiff_t>(at_ + 1),
                                     schedule_.end(), [&](const PipelineStep& later) {
                                       return later.kind == StepKind::kForward &&
                                              !links_.is_first(later.virtual_stage);
                                     });
      const auto form = next != schedule_.end() ? metas.find(form_of(*next)) : metas.end();
      if (form != metas.end()) link.expect(form->second);
      return values;
    });
  }

  void send_values(const Values& values, const PipelineStep& step) {
    ValueMeta meta = meta_of(values);
    const auto [known, is_new] = links_.metas_out.try_emplace(form_of(step), meta);
    if (known->second != meta) {
      const std::string& layer = layers_of(step).back().name;
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("the layer '{}' returned {}, but {} for an earlier micro-batch with the "
                      "same number of rows",
                      layer, text_of(meta), text_of(known->second)),
          {.subject = layer,
           .hint = "shapes may depend only on the shapes of the batch's inputs; pad to one "
                   "size"});
    }
    with_neighbor("sending activations to", links_.stage, links_.after(),
                  [&, header = is_new] { links_.values_out->send(values, header); });
  }

  // Posts one receive ahead: for the next backward that gets gradients, once its forward is done.
  void expect_gradients() {
    StageLink* const link = links_.gradients_in.get();
    if (link == nullptr || link->expects()) return;
    for (size_t i = at_ + 1; i < schedule_.size(); ++i) {
      const PipelineStep& step = schedule_[i];
      if (step.kind == StepKind::kForward || links_.is_last(step.virtual_stage)) continue;
      const std::deque<InFlight>& flights = in_flight_of(step);
      const auto flight = std::find_if(flights.begin(), flights.end(), [&](const InFlight& one) {
        return one.micro_batch == step.micro_batch;
      });
      if (flight == flights.end()) return;
      const ValueMeta meta = gradients_of(flight->outputs);
      if (meta.empty()) continue;
      return with_neighbor("expecting gradients from", links_.stage, links_.after(),
                           [&] { link->expect(meta); });
    }
  }

  void backward(const PipelineStep& step) {
    // Backward computes in the types of forward, whatever scope it is called in.
    const auto outside = tensors::outside_autocast();
    InFlight flight = std::move(in_flight_of(step).front());
    in_flight_of(step).pop_front();
    if (links_.is_last(step.virtual_stage)) {
      const double factor = weight(step.micro_batch) * work_.scale;
      // A 16-bit loss could not hold the product in its own type.
      at::Tensor loss = c10::elementSize(flight.loss.scalar_type()) < 4 ? flight.loss.to(at::kFloat)
                                                                        : flight.loss;
      if (factor != 1) loss = loss * factor;
      flight.loss.reset();
      loss.backward();
    } else {
      Values roots;
      std::copy_if(flight.outputs.begin(), flight.outputs.end(), std::back_inserter(roots),
                   [](const at::Tensor& output) { return output.requires_grad(); });
      if (roots.empty()) return;
      const Values gradients =
          with_neighbor("waiting for the gradients of", links_.stage, links_.after(),
                        [&] { return links_.gradients_in->receive(); });
      expect_gradients();
      flight.outputs.clear();
      torch::autograd::backward(roots, gradients);
    }
    if (links_.is_first(step.virtual_stage)) return;
    Values gradients;
    for (const at::Tensor& input : flight.inputs) {
      if (!input.requires_grad()) continue;
      gradients.push_back(input.grad().defined() ? input.grad() : at::zeros_like(input));
    }
    if (gradients.empty()) return;
    with_neighbor("sending gradients to", links_.stage, links_.before(),
                  [&] { links_.gradients_out->send(gradients, /*header=*/false); });
  }

  const StageLayers& layers_;
  StageLinks& links_;
  const c10::Device device_;
  const BatchWork& work_;
  const Schedule schedule_;
  size_t at_ = 0;                                // in schedule_
  std::vector<std::deque<InFlight>> in_flight_;  // of each virtual stage
  std::vector<Values> results_;
  at::Tensor loss_;  // undefined: 0
};

namespace {

// The abort error of an aborted communicator: that of the first rank that failed.
Error first_error(comm::Communicator& aborted) {
  try {
    aborted.run(tensors::host_op(DB_BARRIER));
  } catch (const Error& error) {
    return error;
  }
  return {ErrorCode::kInternal, "an operation succeeded on an aborted communicator"};
}

}  // namespace

PipelineRunner::PipelineRunner(std::shared_ptr<comm::Communicator> stages, StageLayers layers,
                               c10::Device device, MadeUpStages others)
    : comm_(std::move(stages)),
      layers_(std::move(layers)),
      device_(device),
      others_(std::move(others)),
      links_(*comm_, static_cast<int>(layers_.size()), device_, others_.make_arrival) {}

void PipelineRunner::require_whole() const {
  if (!failed_) return;
  throw Error(ErrorCode::kAborted, "the pipeline ended with an earlier error: " + *failed_,
              {.hint = "exit the program; micro-batches in flight are lost"});
}

// A single process has no neighbors to get out of step with. Aborts the whole pipeline before the
// links: a rank that fails because of a neighbor then finds the original error and passes it on.
void PipelineRunner::give_up(const std::string& why) {
  if (links_.stages == 1) return;
  failed_ = why;
  comm_->abort(why);
  links_.abort(first_error(*comm_).what());
}

void PipelineRunner::run(StageBatch& batch) {
  require_whole();
  const auto place = [&] {
    const PipelineStep& step = batch.now();
    const std::string part =
        links_.virtual_stages == 1
            ? ""
            : fmt::format(", virtual stage {} of {}", step.virtual_stage, links_.virtual_stages);
    return fmt::format("pipeline stage {} of {} (rank {}){}, {} of micro-batch {} of {}",
                       links_.stage, links_.stages, links_.stage, part,
                       step.kind == StepKind::kForward ? "forward" : "backward", step.micro_batch,
                       batch.work().cut.count());
  };
  try {
    while (batch.run_next()) {
    }
    batch.finish();
  } catch (const Error& error) {
    const std::string what = fmt::format("{}: {}", place(), error.what());
    give_up(what);
    ErrorDetail detail = error.detail();
    detail.hint.clear();  // it is in the message
    if (links_.stages == 1 || error.code() != ErrorCode::kAborted)
      throw Error(error.code(), what, detail);
    // A neighbor gave up, perhaps because of a rank further away.
    const Error first = first_error(*comm_);
    detail.rank = first.detail().rank;
    throw Error(first.code(), what, detail);
  } catch (const c10::Error& error) {
    const std::string what = fmt::format("{}: {}", place(), error.what_without_backtrace());
    give_up(what);
    throw Error(ErrorCode::kInvalidArgument, what,
                {.rank = links_.stage,
                 .hint = "run the unsplit model on a batch of this shape to see the full error"});
  } catch (const std::exception& error) {
    give_up(fmt::format("{}: {}", place(), error.what()));
    throw;
  }
}

// The first micro-batches may have one row more than the last ones.
void PipelineRunner::learn_forms(const BatchWork& work) {
  links_.begin(work.signature);
  const int last = links_.virtual_stages - 1;
  for (const int64_t micro_batch : {int64_t{0}, work.cut.count() - 1}) {
    const int64_t rows = work.cut.size(micro_batch);
    if (links_.is_first(last) || links_.metas_in.count({last, rows}) != 0) continue;
    Values values;
    for (const at::Tensor& input : work.inputs) {
      values.push_back(input.narrow(0, work.cut.begin(micro_batch), rows).to(device_));
    }
    for (int turn = 0, part = 0; turn <= last; ++part) {
      if (part % links_.stages == links_.stage) {
        if (part > 0) links_.metas_in[{turn, rows}] = meta_of(values);
        ++turn;
      }
      if (turn > last) break;
      for (const PipelineLayer& layer : others_.chain[static_cast<size_t>(part)]) {
        values = run_layer(layer, values);
      }
    }
  }
  if (work.on_forward_left) work.on_forward_left();
}

Values PipelineRunner::infer(const BatchWork& work) {
  const at::NoGradGuard no_grad;
  StageBatch batch(
      layers_, links_, device_, work,
      sharding::inference_schedule(links_.stages, work.cut.count(), links_.virtual_stages));
  run(batch);
  return batch.outputs();
}

double PipelineRunner::train(const BatchWork& work) {
  StageBatch batch(layers_, links_, device_, work,
                   sharding::training_schedule(links_.stage, links_.stages, work.cut.count(),
                                               links_.virtual_stages));
  run(batch);
  return batch.loss();
}

}  // namespace coupler::pipelining
