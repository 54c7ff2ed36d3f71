// Builds a PipelineParallel: checks what it does not support, cuts the layers into stages, and
// plans which rank keeps what.
#include <ATen/Functions.h>
#include <coupler/error.h>
#include <coupler/pipeline_parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "accelerator/agreement.h"
#include "accelerator/pipeline_state.h"
#include "base/byte_size.h"
#include "base/log.h"
#include "dry_run/dry_run.h"
#include "pipeline/measure.h"
#include "sharding/pipeline_cut.h"
#include "tensors/tensor_ops.h"

namespace coupler {
namespace {

// Refuses a key whose feature a pipeline does not support.
void require_unset(bool unset, const char* key, const char* why, const char* hint) {
  if (unset) return;
  throw Error(ErrorCode::kUnsupported, fmt::format("{} is set, but {}", key, why),
              {.subject = key, .hint = hint});
}

void require_known(const Config& config) {
  const TrainingConfig& training = config.training;
  require_unset(training.gradient_accumulation_steps == 1, "training.gradient_accumulation_steps",
                "a pipeline accumulates over its micro-batches",
                "leave it at 1, and give larger batches with more micro_batches");
  require_unset(!training.optimizer_in_backward, "training.optimizer_in_backward",
                "a pipeline's gradients are complete only after the last micro-batch",
                "set it to false");
  const MemoryConfig& memory = config.memory;
  require_unset(memory.activation_checkpointing.empty(), "memory.activation_checkpointing",
                "a pipeline does not support it",
                "leave it out; more and smaller micro-batches need less memory");
  require_unset(!memory.offload_activations, "memory.offload_activations",
                "a pipeline does not support it", "set it to false");
  require_unset(memory.offload_optimizer_device == "none", "memory.offload_optimizer_device",
                "a pipeline keeps each process's part of the optimizer in memory",
                "set it to \"none\"; more processes need less memory each");
  require_unset(memory.limit.empty(), "memory.limit",
                "the memory of a pipeline stage is not estimated", "leave it out");
}

// Broadcasts rank 0's result, so that all ranks use the same.
StageBegins agreed_begins(Communicator& comm, StageBegins own, int stages) {
  const at::Tensor numbers = at::zeros({stages}, at::kLong);
  int64_t* const data = numbers.mutable_data_ptr<int64_t>();
  if (comm.rank() == 0) std::copy(own.begin(), own.end(), data);
  if (comm.size() > 1) comm.run(broadcast_op(numbers, 0));
  return {data, data + stages};
}

StageBegins cut(Communicator& comm, const Chain& chain, const Model& model,
                torch::nn::Module& module, const PipelineOptions& options) {
  const int stages = comm.size();
  Claim claim{.operation = fmt::format(
                  "prepare_pipeline(split_points {}, micro_batches {}, gather_output {})",
                  fmt::join(options.split_points.names(), " "), options.micro_batches,
                  options.gather_output)};
  StageBegins own;
  try {
    if (!options.split_points.is_auto()) {
      own = cut_at(chain.names(), options.split_points.names(), stages);
    } else if (comm.rank() != 0 || options.example_inputs.empty()) {
      own = balanced_cut(bytes_of_layers(chain, model), stages);
    } else {
      own = balanced_cut(seconds_of_layers(chain, model, module, options.example_inputs), stages);
    }
  } catch (const Error& problem) {
    claim.problem = problem;
  } catch (const c10::Error& problem) {
    claim.problem =
        Error(ErrorCode::kInvalidArgument,
              fmt::format("the layers cannot compute example_inputs: {}",
                          problem.what_without_backtrace()),
              {.subject = "example_inputs", .hint = "give the inputs of one micro-batch"});
  }
  agree(comm, claim);
  return agreed_begins(comm, std::move(own), stages);
}

StagePlan plan_of(const Chain& chain, const Model& model, const StageBegins& begins) {
  StagePlan plan{std::vector<std::vector<int>>(model.parameters.size()),
                 std::vector<int>(model.buffers.size(), 0)};
  for (size_t i = 0, stage = 0; i < chain.links.size(); ++i) {
    if (stage + 1 < begins.size() && i == begins[stage + 1]) ++stage;
    for (const size_t parameter : chain.links[i].parameters) {
      std::vector<int>& stages = plan.parameters[parameter];
      if (stages.empty() || stages.back() != static_cast<int>(stage)) {
        stages.push_back(static_cast<int>(stage));
      }
    }
    for (const size_t buffer : chain.links[i].buffers) {
      plan.buffers[buffer] = static_cast<int>(stage);
    }
  }
  return plan;
}

}  // namespace

PipelineParallel PipelineParallel::make(Accelerator& accelerator, torch::nn::Module& module,
                                        const PipelineOptions& given) {
  Accelerator::Impl& impl = *accelerator.impl_;
  PipelineOptions options = given;
  if (options.micro_batches == 0) options.micro_batches = impl.process.world;
  if (options.micro_batches < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("micro_batches is {}, but must be at least 1", options.micro_batches),
                {.subject = "micro_batches", .hint = "0 makes one for each process"});
  }
  if (impl.dry_run != nullptr) {
    throw Error(ErrorCode::kUnsupported,
                "COUPLER_ESTIMATE is set, but the memory of a pipeline stage is not estimated",
                {.subject = "COUPLER_ESTIMATE"});
  }
  if (impl.comm->can_shard()) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("the backend '{}' shards a model's parameters itself; a pipeline "
                            "divides its layers and needs a transport",
                            impl.plugin.name()),
                {.subject = "backend.use",
                 .hint = "set backend.use to a transport: gloo_cpu, mpi, nccl or \"auto\""});
  }
  require_known(impl.config);
  Model model = describe(module, impl.device);
  if (impl.find(model.identity) != nullptr) {
    throw Error(ErrorCode::kUsage, fmt::format("the model '{}' was prepared twice", model.name),
                {.subject = model.name, .hint = "pass it to prepare_pipeline only"});
  }
  const Chain chain = chain_of(module, model);
  const std::shared_ptr<Communicator> comm =
      impl.process.world == 1 ? impl.comm : impl.comm->split(0, impl.process.rank, "pipeline");
  const StageBegins begins = cut(*comm, chain, model, module, options);
  StagePlan plan = plan_of(chain, model, begins);
  const auto stage = static_cast<size_t>(comm->rank());
  const size_t end = stage + 1 < begins.size() ? begins[stage + 1] : chain.links.size();
  std::vector<PipelineLayer> layers;
  std::vector<std::string> names, split_points;
  for (size_t i = begins[stage]; i < end; ++i) {
    layers.push_back(chain.links[i].layer);
    names.push_back(chain.links[i].layer.name);
  }
  for (size_t i = 1; i < begins.size(); ++i) {
    split_points.push_back(chain.links[begins[i]].layer.name);
  }
  auto kept = std::make_shared<PipelineStage>(std::move(model), std::move(plan), comm);
  impl.models.push_back(kept);
  if (impl.scaler != nullptr) impl.scaler->add(kept);
  size_t bytes = 0;
  for (const ParameterPart& part : kept->parts()) bytes += part.values.nbytes();
  log(LogLevel::kInfo, "train",
      fmt::format("pipeline stage {} of {}: layers '{}' to '{}', {} of parameters", stage,
                  begins.size(), names.front(), names.back(), format_byte_size(bytes)));
  return PipelineParallel(std::unique_ptr<State>(
      new State{impl, std::move(options), std::move(names), std::move(split_points), kept,
                PipelineRunner(comm, std::move(layers), impl.device)}));
}

}  // namespace coupler
