// PipelineParallel: runs batches through a pipeline over ranks.
#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <coupler/error.h>
#include <coupler/pipeline_parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "accelerator/accelerator.h"
#include "accelerator/consistency_check.h"
#include "activations/forward_recorder.h"
#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "dry_run/dry_run.h"
#include "groups/groups.h"
#include "pipeline/layers.h"
#include "pipeline/link.h"
#include "pipeline/runner.h"
#include "pipeline/stage.h"
#include "residency/parameter_hooks.h"
#include "sharding/pipeline_requirements.h"
#include "sharding/pipeline_schedule.h"
#include "tensor_parallel/module_plan.h"
#include "tensors/tensor_ops.h"

namespace coupler {

// The pipelines of a job: without a mesh all ranks are one.
struct PipelineRanks {
  std::shared_ptr<comm::Communicator> all;  // of all ranks, for agreement
  std::shared_ptr<comm::Communicator> stages;
  std::shared_ptr<comm::Communicator> replicas;  // null: one pipeline
  std::vector<std::vector<size_t>> pipelines;    // the ranks of each, in the order of stages
  size_t own = 0;                                // this rank's pipeline
  bool made_up = false;                          // in a dry run: all ranks but this one
};

// The state of a PipelineParallel. Used by the training thread.
struct PipelineParallel::State {
  Accelerator::Impl& impl;
  PipelineOptions options;  // micro_batches is at least 1
  std::vector<std::string> layers, split_points;
  std::shared_ptr<pipelining::PipelineStage> stage;
  pipelining::PipelineRunner runner;
  PipelineRanks ranks;
};

namespace {

constexpr int kRowBits = 31;

// The number of rows of a batch. Throws if a tensor has no rows or if their numbers differ.
int64_t rows_of(const char* name, const std::vector<at::Tensor>& values) {
  const auto refuse = [&](const std::string& what) {
    fail_argument(fmt::format("the {} of the batch: {}", name, what), name,
                  "give tensors [rows, …] with a row for each sample");
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

// A hash of everything except rows that determines types and shapes of the tensors sent between
// stages.
uint32_t signature_of(const pipelining::BatchWork& work, const strategy::Model& model) {
  const c10::DeviceType device = model.device.type();
  SignatureHash hash;
  for (const strategy::ModelParameter& parameter : model.parameters) {
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
  fail_argument(fmt::format("the input has {} rows, but the target has {}", inputs, targets),
                "target",
                "give every process the same batches: the first reads the inputs, the "
                "last the targets (a loader that is not prepared gives all of them the "
                "same)");
}

void require_inputs_of_dry_run(const pipelining::BatchWork& work) {
  if (std::all_of(work.inputs.begin(), work.inputs.end(),
                  [](const at::Tensor& input) { return input.defined(); }))
    return;
  throw Error(ErrorCode::kUnsupported,
              "an input of the batch is undefined, but the dry run of a stage finds out what it "
              "receives from the inputs of the first one",
              {.subject = "input",
               .hint = "give every process the batch's inputs, at least while COUPLER_ESTIMATE is "
                       "set"});
}

// The rows of this rank's part of the batch; 0 if it reads neither inputs nor targets.
int64_t checked_rows(const pipelining::PipelineRunner& runner, const pipelining::BatchWork& work,
                     int64_t micro_batches, bool reads_inputs) {
  int64_t rows = 0;
  if (reads_inputs) {
    rows = rows_of("input", work.inputs);
    if (rows < micro_batches) {
      fail_argument(fmt::format("a batch of {} rows cannot be split into {} micro-batches", rows,
                                micro_batches),
                    "micro_batches",
                    "set fewer micro_batches, or give larger batches (drop_last leaves out "
                    "a small last one)");
    }
  }
  if (!work.training || !runner.is_last()) return rows;
  const int64_t targets = rows_of("target", work.targets);
  if (reads_inputs && targets != rows) throw_rows_differ(rows, targets);
  if (!work.loss)
    fail_argument("no loss function is given", "loss", "pass a function of output and target");
  return targets;
}

// Before a batch begins, every rank reports what it has of it. Then all ranks know the number of
// rows, or all throw.
void agree_on_batch(pipelining::PipelineRunner& runner, const PipelineRanks& ranks,
                    pipelining::BatchWork& work, int64_t micro_batches,
                    const strategy::Model& model, const char* operation) {
  runner.require_whole();
  if (ranks.made_up) require_inputs_of_dry_run(work);
  const bool reads_inputs = runner.is_first() || ranks.made_up;
  CollectiveSignature signature{.operation = operation};
  int64_t rows = 0;
  try {
    rows = checked_rows(runner, work, micro_batches, reads_inputs);
  } catch (const Error& problem) {
    signature.problem = problem;
  }
  const uint64_t hash =
      reads_inputs && !signature.problem ? signature_of(work, model) : uint64_t{0};
  signature.number = static_cast<int64_t>(static_cast<uint64_t>(rows) << 32 | hash);
  const std::vector<int64_t> numbers = check_consistency(*ranks.all, signature);
  for (const std::vector<size_t>& pipeline : ranks.pipelines) {
    const int64_t inputs = numbers[pipeline.front()] >> 32;
    const int64_t targets = numbers[pipeline.back()] >> 32;
    if (work.training && targets != inputs) throw_rows_differ(inputs, targets);
  }
  const int64_t first = numbers[ranks.pipelines[ranks.own].front()];
  work.cut = sharding::MicroBatches(first >> 32, micro_batches);
  work.signature = static_cast<uint64_t>(first) & 0xffffffffu;
}

// The next micro-batch's operations on the same unit are not of this one's segment.
void leave_forward() { activations::ForwardRecorder::of_this_thread().close(); }

// Returns the last rank's outputs on every rank.
pipelining::Values gather_from_last(comm::Communicator& comm, pipelining::Values outputs,
                                    c10::Device device) {
  if (comm.size() == 1) return outputs;
  const int last = comm.size() - 1;
  const bool has = comm.rank() == last;
  const at::Tensor header = has ? pipelining::header_of(pipelining::meta_of(outputs))
                                : at::zeros({pipelining::kHeaderNumbers}, at::kLong);
  comm.run(tensors::broadcast_op(header, last));
  if (!has) {
    for (const pipelining::TensorMeta& tensor : pipelining::meta_in(header)) {
      outputs.push_back(at::empty(tensor.sizes, at::TensorOptions(tensor.type).device(device)));
    }
  }
  for (at::Tensor& output : outputs) {
    output = output.contiguous();
    comm.run(tensors::broadcast_op(output, last));
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
int PipelineParallel::virtual_stages() const { return state_->runner.virtual_stages(); }
const std::vector<std::string>& PipelineParallel::layers() const { return state_->layers; }
const std::vector<std::string>& PipelineParallel::split_points() const {
  return state_->split_points;
}

at::Tensor PipelineParallel::forward(const at::Tensor& input, CallSite) {
  const pipelining::Values outputs = forward_all({input});
  if (outputs.empty()) return {};
  if (outputs.size() == 1) return outputs[0];
  fail_usage(fmt::format("forward: the model returns {} tensors, not one", outputs.size()),
             "forward", "call forward_all");
}

pipelining::Values PipelineParallel::forward_all(const pipelining::Values& inputs, CallSite) {
  State& state = *state_;
  pipelining::BatchWork work{.inputs = inputs};
  agree_on_batch(state.runner, state.ranks, work, state.options.micro_batches, state.stage->model(),
                 "pipeline.forward");
  if (state.impl.dry_run != nullptr) {
    if (state.options.gather_output && !state.runner.is_last()) {
      throw Error(ErrorCode::kUnsupported,
                  "pipeline.forward with gather_output returns what the last stage computes, which "
                  "a dry run of another stage does not have",
                  {.subject = "gather_output", .hint = "skip it while COUPLER_ESTIMATE is set"});
    }
    const at::NoGradGuard no_grad;
    const dry_run::Unlogged other_stages(*state.impl.dry_run);
    state.runner.learn_forms(work);
  }
  const pipelining::Values outputs = state.runner.infer(work);
  if (!state.options.gather_output) return outputs;
  return gather_from_last(state.runner.stages(), outputs, state.impl.device);
}

double PipelineParallel::train_step(const at::Tensor& input, const at::Tensor& target,
                                    const Loss& loss, CallSite) {
  LossOfAll of_all;
  if (loss) {
    of_all = [&](const pipelining::Values& outputs, const pipelining::Values& targets) {
      if (outputs.size() == 1) return loss(outputs[0], targets[0]);
      fail_usage(fmt::format("train_step: the model returns {} tensors, not one", outputs.size()),
                 "train_step", "call train_step_all");
    };
  }
  return train_step_all({input}, {target}, of_all);
}

double PipelineParallel::train_step_all(const pipelining::Values& inputs,
                                        const pipelining::Values& targets, const LossOfAll& loss,
                                        CallSite) {
  State& state = *state_;
  Accelerator::Impl& impl = state.impl;
  pipelining::BatchWork work{.training = true,
                             .inputs = inputs,
                             .targets = targets,
                             .loss = loss,
                             .mean_loss = state.options.loss_reduction == LossReduction::kMean,
                             .on_forward_left = leave_forward};
  agree_on_batch(state.runner, state.ranks, work, state.options.micro_batches, state.stage->model(),
                 "pipeline.train_step");
  const BackwardScale scale = impl.backward_scale(std::nullopt);
  work.scale =
      impl.scale_loss(at::full({}, scale.loss, at::kDouble), {state.stage.get()}).item<double>();
  if (impl.dry_run != nullptr) {
    {
      const dry_run::Unlogged other_stages(*impl.dry_run);
      state.runner.learn_forms(work);
    }
    impl.dry_run->backward_begins(impl.accumulation.loop().sync);
  }
  state.stage->begin_gradients();
  const double own = state.runner.train(work);
  state.stage->finish_gradients(scale.average);
  if (impl.dry_run != nullptr) impl.dry_run->backward_ends();
  impl.accumulation.ran_backward(scale.loss * scale.average);
  return tensors::all_reduce_number(state.runner.stages(), own, DB_SUM);
}

// Builds a PipelineParallel: checks what it does not support, cuts the layers into stages, and
// plans which rank keeps what.

namespace {

// Refuses a key whose feature a pipeline does not support.
void require_unset(bool unset, const char* key, const char* why, const char* hint) {
  if (unset) return;
  throw Error(ErrorCode::kUnsupported, fmt::format("{} is set, but {}", key, why),
              {.subject = key, .hint = hint});
}

void require_known(const config::Config& config, bool several) {
  const config::TrainingConfig& training = config.training;
  require_unset(!training.optimizer_in_backward, "training.optimizer_in_backward",
                "a pipeline's gradients are complete only after the last micro-batch",
                "set it to false");
  const config::MemoryConfig& memory = config.memory;
  require_unset(!memory.offload_activations, "memory.offload_activations",
                "a pipeline does not support it", "set it to false");
  sharding::require_pipeline_optimizer(memory);
  const config::CommunicationConfig& communication = config.communication;
  require_unset(!several || communication.gradients == "none", "communication.gradients",
                "pipelines average their gradients uncompressed", "set it to \"none\"");
  require_unset(!several || communication.local_sgd_steps == 0, "communication.local_sgd_steps",
                "pipelines average their gradients in every batch", "set it to 0");
  require_unset(memory.limit.empty(), "memory.limit", "a pipeline does not support it",
                "leave it out; `coupler estimate` says what each stage needs");
}

// Broadcasts rank 0's result, so that all ranks use the same.
sharding::StageBegins agreed_begins(comm::Communicator& comm, sharding::StageBegins own,
                                    size_t parts) {
  own.resize(parts);
  if (comm.size() > 1)
    comm.run(tensors::host_op(DB_BROADCAST, DB_U64, own.data(), own.data(), own.size()));
  return own;
}

// comm: of all ranks, so that all pipelines are cut alike.
sharding::StageBegins cut(comm::Communicator& comm, int stages, const pipelining::LayerList& layers,
                          const strategy::Model& model, torch::nn::Module& module,
                          const PipelineOptions& options) {
  CollectiveSignature signature{
      .operation =
          fmt::format("prepare_pipeline(split_points {}, micro_batches {}, virtual_stages {}, "
                      "gather_output {})",
                      fmt::join(options.split_points.names(), " "), options.micro_batches,
                      options.virtual_stages, options.gather_output)};
  sharding::StageBegins own;
  try {
    if (!options.split_points.is_auto()) {
      own = sharding::cut_at(layers.names(), options.split_points.names(), stages,
                             options.virtual_stages);
    } else if (comm.rank() != 0 || options.example_inputs.empty()) {
      own = sharding::balanced_cut(pipelining::bytes_of_layers(layers, model), stages,
                                   options.virtual_stages);
    } else {
      own = sharding::balanced_cut(
          pipelining::seconds_of_layers(layers, model, module, options.example_inputs), stages,
          options.virtual_stages);
    }
  } catch (const Error& problem) {
    signature.problem = problem;
  } catch (const c10::Error& problem) {
    signature.problem =
        Error(ErrorCode::kInvalidArgument,
              fmt::format("the layers cannot compute example_inputs: {}",
                          problem.what_without_backtrace()),
              {.subject = "example_inputs", .hint = "give the inputs of one micro-batch"});
  }
  check_consistency(comm, signature);
  return agreed_begins(comm, std::move(own),
                       static_cast<size_t>(stages) * static_cast<size_t>(options.virtual_stages));
}

// Collective.
PipelineRanks ranks_of(const config::Config& config, groups::Groups& all) {
  PipelineRanks result{.all = all.world()};
  const Mesh& mesh = all.mesh();
  const int world_size = all.world()->size();
  if (!groups::is_configured(config)) {
    result.stages = world_size == 1 ? all.world() : all.make(groups::kWorld, "pipeline");
    result.pipelines.emplace_back(static_cast<size_t>(world_size));
    std::iota(result.pipelines[0].begin(), result.pipelines[0].end(), size_t{0});
    return result;
  }
  result.stages = all.make(groups::kPipeline, "pipeline");
  if (groups::group_size(mesh, groups::kGradients) > 1)
    result.replicas = all.make(groups::kGradients, "gradients of a stage");
  result.pipelines.resize(static_cast<size_t>(world_size / mesh.size("pipeline")));
  for (int rank = 0; rank < world_size; ++rank) {
    const Mesh of_rank(mesh.sizes(), rank);
    const auto pipeline = static_cast<size_t>(groups::group_number(of_rank, groups::kPipeline));
    result.pipelines[pipeline].push_back(static_cast<size_t>(rank));
  }
  result.own = static_cast<size_t>(groups::group_number(mesh, groups::kPipeline));
  return result;
}

// In a dry run, in which this process is one stage of the only pipeline.
PipelineRanks ranks_of_dry_run(groups::Groups& all, int stages, int stage) {
  PipelineRanks result{.all = all.world()};
  result.made_up = true;
  result.stages =
      stages == 1 ? all.world() : comm::Communicator::made_up("pipeline", stages, stage);
  result.pipelines.emplace_back(1);  // rank 0 alone
  return result;
}

void require_stage(const dry_run::DryRun& run, int stages) {
  if (run.stage() < stages) return;
  fail_usage(fmt::format("COUPLER_ESTIMATE_STAGE is {}, but the pipeline has {} stages",
                         run.stage(), stages),
             "COUPLER_ESTIMATE_STAGE", "start the program with `coupler estimate`, which sets it");
}

// By parameter: whether only other stages keep it.
std::vector<bool> kept_elsewhere(const pipelining::StagePlacement& placement, int stage) {
  std::vector<bool> result;
  for (const std::vector<int>& stages : placement.parameters)
    result.push_back(std::find(stages.begin(), stages.end(), stage) == stages.end());
  return result;
}

// What a dry run receives from stages that do not exist.
at::Tensor make_fake(at::IntArrayRef sizes, at::ScalarType type) {
  return dry_run::fake_like(at::empty(sizes, at::TensorOptions(type).device(at::kMeta)));
}

// The layers of all parts of the model, in order.
pipelining::StageLayers chain_of(const pipelining::LayerList& list,
                                 const sharding::StageBegins& begins) {
  pipelining::StageLayers chain(begins.size());
  for (size_t i = 0, part = 0; i < list.entries.size(); ++i) {
    if (part + 1 < begins.size() && i == begins[part + 1]) ++part;
    chain[part].push_back(list.entries[i].layer);
  }
  return chain;
}

// Sets what is not given, and checks the rest.
void complete_options(PipelineOptions& options, int stages) {
  if (options.micro_batches == 0) options.micro_batches = stages;
  if (options.micro_batches < 1) {
    fail_argument(fmt::format("micro_batches is {}, but must be at least 1", options.micro_batches),
                  "micro_batches", "0 makes one for each stage");
  }
  if (options.virtual_stages < 1) {
    fail_argument(
        fmt::format("virtual_stages is {}, but must be at least 1", options.virtual_stages),
        "virtual_stages", "1 gives each process one part of the model");
  }
  if (stages == 1) options.virtual_stages = 1;  // it never waits
  if (options.virtual_stages == 1 || options.micro_batches % stages == 0) return;
  fail_argument(fmt::format("micro_batches is {}, but with virtual_stages = {} it must be a "
                            "multiple of the {} processes of a pipeline",
                            options.micro_batches, options.virtual_stages, stages),
                "micro_batches",
                fmt::format("set it to {}", (options.micro_batches / stages + 1) * stages));
}

}  // namespace

PipelineParallel PipelineParallel::make(Accelerator& accelerator, torch::nn::Module& module,
                                        const PipelineOptions& given) {
  Accelerator::Impl& impl = *accelerator.impl_;
  PipelineOptions options = given;
  const Mesh& mesh = impl.groups->mesh();
  const bool has_mesh = groups::is_configured(impl.config);
  const bool is_dry = impl.dry_run != nullptr;
  const int ranks_of_job =
      is_dry ? static_cast<int>(impl.config.launch.processes) : impl.process.world_size;
  const int stages = has_mesh ? mesh.size("pipeline") : ranks_of_job;
  complete_options(options, stages);
  if (is_dry) require_stage(*impl.dry_run, stages);
  sharding::require_pipeline_transport(impl.plugin.name(), impl.comm->can_shard());
  // Unlike mean_comm's, also the ranks that a dry run leaves out.
  const int averaging =
      groups::group_size(groups::mesh_of(impl.config, ranks_of_job, 0), groups::kGradients);
  require_known(impl.config, has_mesh && averaging > 1);
  strategy::Model model = strategy::describe(module, impl.device);
  if (impl.find(model.identity) != nullptr) {
    fail_usage(fmt::format("the model '{}' was prepared twice", model.name), model.name,
               "pass it to prepare_pipeline only");
  }
  if (is_dry) {
    impl.dry_run->make_fake(model);
    options.example_inputs.clear();  // layers without values take no time: their bytes count
  }
  impl.divide_layers(model, tensor_parallel::plan_of(module, mesh.size("tensor")));
  const pipelining::LayerList list = pipelining::layer_list_of(module, model);
  PipelineRanks ranks = is_dry ? ranks_of_dry_run(*impl.groups, stages, impl.dry_run->stage())
                               : ranks_of(impl.config, *impl.groups);
  const std::shared_ptr<comm::Communicator> comm = ranks.stages;
  const sharding::StageBegins begins = cut(*ranks.all, stages, list, model, module, options);
  pipelining::StagePlacement placement = pipelining::placement_of(list, model, begins, stages);
  pipelining::StageLayers layers;
  std::vector<std::string> names, split_points, ranges;
  for (auto part = static_cast<size_t>(comm->rank()); part < begins.size();
       part += static_cast<size_t>(stages)) {
    const size_t end = part + 1 < begins.size() ? begins[part + 1] : list.entries.size();
    std::vector<PipelineLayer>& own = layers.emplace_back();
    for (size_t i = begins[part]; i < end; ++i) {
      own.push_back(list.entries[i].layer);
      names.push_back(list.entries[i].layer.name);
    }
    ranges.push_back(fmt::format("'{}' to '{}'", own.front().name, own.back().name));
  }
  for (size_t i = 1; i < begins.size(); ++i) {
    split_points.push_back(list.entries[begins[i]].layer.name);
  }
  if (is_dry) {
    impl.dry_run->set_pipeline({.stages = stages,
                                .stage = comm->rank(),
                                .micro_batches = options.micro_batches,
                                .virtual_stages = options.virtual_stages});
    impl.dry_run->take(model, kept_elsewhere(placement, comm->rank()));
  }
  auto kept = std::make_shared<pipelining::PipelineStage>(
      std::move(model), std::move(placement),
      pipelining::PipelineComms{
          .stages = comm, .replicas = ranks.replicas, .made_up = ranks.made_up},
      impl.config.training.broadcast_buffers);
  impl.models.push_back(kept);
  if (is_dry) impl.dry_run->watch(kept->model());
  residency::restore_hooks();
  if (impl.scaler != nullptr) impl.scaler->add(kept);
  size_t bytes = 0;
  for (const strategy::ParameterPart& part : kept->parts()) bytes += part.values.nbytes();
  log(LogLevel::kInfo, "train",
      fmt::format("pipeline stage {} of {}: layers {}, {} of parameters", comm->rank(), stages,
                  fmt::join(ranges, " and "), format_byte_size(bytes)));
  if (!impl.config.memory.activation_checkpointing.empty()) {
    activations::ForwardRecorder::of_this_thread().watch(
        kept->model(), impl.config.memory.activation_checkpointing);
  }
  pipelining::MadeUpStages others;
  if (is_dry) others = {.make_arrival = make_fake, .chain = chain_of(list, begins)};
  return PipelineParallel(std::unique_ptr<State>(
      new State{impl, std::move(options), std::move(names), std::move(split_points), kept,
                pipelining::PipelineRunner(comm, std::move(layers), impl.device, std::move(others)),
                std::move(ranks)}));
}

}  // namespace coupler
