// PipelineParallel: runs batches through a pipeline over ranks. pipeline_prepare.cc builds it.
#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <coupler/error.h>
#include <coupler/pipeline_parallel.h>
#include <fmt/format.h>

#include "accelerator/agreement.h"
#include "accelerator/pipeline_state.h"
#include "pipeline/form.h"
#include "tensors/tensor_ops.h"

namespace coupler {
namespace {

constexpr int kRowBits = 31;

// The number of rows of a batch. Throws if a tensor has no rows or if their numbers differ.
int64_t rows_of(const char* name, const std::vector<at::Tensor>& values) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("the {} of the batch: {}", name, what),
                {.subject = name, .hint = "give tensors [rows, …] with a row for each sample"});
  };
  if (values.empty()) refuse("it has no tensors");
  for (const at::Tensor& value : values) {
    if (!value.defined()) refuse("it is an undefined tensor");
    if (value.dim() == 0) refuse("it is a scalar, which has no rows");
    if (value.size(0) != values[0].size(0)) {
      refuse(fmt::format("its tensors have {} and {} rows", values[0].size(0), value.size(0)));
    }
  }
  if (values[0].size(0) >> kRowBits != 0)
    refuse(fmt::format("{} rows are too many", values[0].size(0)));
  return values[0].size(0);
}

// A hash of everything except rows that determines the forms of tensors sent between stages.
uint32_t signature_of(const BatchWork& work, const Model& model) {
  const c10::DeviceType device = model.device.type();
  ClaimHash hash;
  for (const ModelParameter& parameter : model.parameters) {
    hash.add(parameter.tensor.requires_grad() ? 1 : 0);  // parameters may be frozen or unfrozen
  }
  hash.add(work.training ? 1 : 0);
  hash.add(at::autocast::is_autocast_enabled(device) ? 1 : 0);
  hash.add(static_cast<uint64_t>(at::autocast::get_autocast_dtype(device)));
  for (const at::Tensor& input : work.inputs) {
    hash.add(static_cast<uint64_t>(input.scalar_type()));
    hash.add(static_cast<uint64_t>(input.dim()));
    for (const int64_t size : input.sizes().slice(1)) hash.add(static_cast<uint64_t>(size));
  }
  return static_cast<uint32_t>(hash.low() ^ (hash.low() >> 32));
}

[[noreturn]] void throw_rows_differ(int64_t inputs, int64_t targets) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("the input has {} rows, but the target has {}", inputs, targets),
              {.subject = "target",
               .hint = "give every process the same batches: the first reads the inputs, the "
                       "last the targets (a loader that is not prepared gives all of them the "
                       "same)"});
}

void check_batch(const PipelineRunner& runner, const BatchWork& work, int64_t micro_batches,
                 int64_t& rows) {
  if (runner.is_first()) {
    rows = rows_of("input", work.inputs);
    if (rows < micro_batches) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("a batch of {} rows cannot be split into {} micro-batches", rows,
                              micro_batches),
                  {.subject = "micro_batches",
                   .hint = "set fewer micro_batches, or give larger batches (drop_last leaves out "
                           "a small last one)"});
    }
  }
  if (!work.training || !runner.is_last()) return;
  const int64_t targets = rows_of("target", work.targets);
  if (runner.is_first() && targets != rows) throw_rows_differ(rows, targets);
  rows = targets;
  if (work.loss) return;
  throw Error(ErrorCode::kInvalidArgument, "no loss function is given",
              {.subject = "loss", .hint = "pass a function of output and target"});
}

// Before a batch begins, every rank reports what it has of it. Then all ranks know the number of
// rows, or all throw.
void agree_on_batch(PipelineRunner& runner, BatchWork& work, int64_t micro_batches,
                    const Model& model, const char* operation) {
  runner.require_whole();
  Claim claim{.operation = operation};
  int64_t rows = 0;
  try {
    check_batch(runner, work, micro_batches, rows);
  } catch (const Error& problem) {
    claim.problem = problem;
  }
  const uint64_t signature =
      runner.is_first() && !claim.problem ? signature_of(work, model) : uint64_t{0};
  claim.number = static_cast<int64_t>(static_cast<uint64_t>(rows) << 32 | signature);
  const std::vector<int64_t> numbers = agree(runner.stages(), claim);
  rows = numbers.front() >> 32;
  const int64_t targets = numbers.back() >> 32;
  if (work.training && targets != rows) throw_rows_differ(rows, targets);
  work.cut = MicroBatches(rows, micro_batches);
  work.signature = static_cast<uint64_t>(numbers.front()) & 0xffffffffu;
}

// Returns the last rank's outputs on every rank.
Values gather_from_last(Communicator& comm, Values outputs, c10::Device device) {
  if (comm.size() == 1) return outputs;
  const int last = comm.size() - 1;
  const bool has = comm.rank() == last;
  const at::Tensor header =
      has ? header_of(form_of(outputs)) : at::zeros({kHeaderNumbers}, at::kLong);
  comm.run(broadcast_op(header, last));
  if (!has) {
    for (const TensorForm& tensor : form_in(header)) {
      outputs.push_back(at::empty(tensor.sizes, at::TensorOptions(tensor.type).device(device)));
    }
  }
  for (at::Tensor& output : outputs) {
    output = output.contiguous();
    comm.run(broadcast_op(output, last));
  }
  return outputs;
}

}  // namespace

PipelineParallel::PipelineParallel(std::unique_ptr<State> state) : state_(std::move(state)) {}
PipelineParallel::PipelineParallel(PipelineParallel&&) noexcept = default;
PipelineParallel& PipelineParallel::operator=(PipelineParallel&&) noexcept = default;
PipelineParallel::~PipelineParallel() = default;

int PipelineParallel::stage() const { return state_->runner.stages().rank(); }
int PipelineParallel::stages() const { return state_->runner.stages().size(); }
const std::vector<std::string>& PipelineParallel::layers() const { return state_->layers; }
const std::vector<std::string>& PipelineParallel::split_points() const {
  return state_->split_points;
}

at::Tensor PipelineParallel::forward(const at::Tensor& input, CallSite) {
  const Values outputs = forward_all({input});
  if (outputs.empty()) return {};
  if (outputs.size() == 1) return outputs[0];
  throw Error(ErrorCode::kUsage,
              fmt::format("forward: the model returns {} tensors, not one", outputs.size()),
              {.subject = "forward", .hint = "call forward_all"});
}

Values PipelineParallel::forward_all(const Values& inputs, CallSite) {
  State& state = *state_;
  BatchWork work{.inputs = inputs};
  agree_on_batch(state.runner, work, state.options.micro_batches, state.stage->model(),
                 "pipeline.forward");
  const Values outputs = state.runner.infer(work);
  if (!state.options.gather_output) return outputs;
  return gather_from_last(state.runner.stages(), outputs, state.impl.device);
}

double PipelineParallel::train_step(const at::Tensor& input, const at::Tensor& target,
                                    const Loss& loss, CallSite) {
  LossOfAll of_all;
  if (loss) {
    of_all = [&](const Values& outputs, const Values& targets) {
      if (outputs.size() == 1) return loss(outputs[0], targets[0]);
      throw Error(ErrorCode::kUsage,
                  fmt::format("train_step: the model returns {} tensors, not one", outputs.size()),
                  {.subject = "train_step", .hint = "call train_step_all"});
    };
  }
  return train_step_all({input}, {target}, of_all);
}

double PipelineParallel::train_step_all(const Values& inputs, const Values& targets,
                                        const LossOfAll& loss, CallSite) {
  State& state = *state_;
  Accelerator::Impl& impl = state.impl;
  BatchWork work{.training = true,
                 .inputs = inputs,
                 .targets = targets,
                 .loss = loss,
                 .mean_loss = state.options.loss_reduction == LossReduction::kMean};
  agree_on_batch(state.runner, work, state.options.micro_batches, state.stage->model(),
                 "pipeline.train_step");
  work.scale = impl.scale_loss(at::ones({}, at::kDouble), {state.stage.get()}).item<double>();
  state.stage->begin_gradients();
  const double own = state.runner.train(work);
  state.stage->finish_gradients();
  impl.accumulation.ran_backward();
  return all_reduce_number(state.runner.stages(), own, DB_SUM);
}

}  // namespace coupler
