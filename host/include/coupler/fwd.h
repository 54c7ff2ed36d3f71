// Forward declarations of Coupler's types, for headers that only use references or pointers to
// them. Cheap to include: it needs neither LibTorch nor the standard library. The definitions are
// in <coupler/coupler.h>, and in the header named above each group.
#pragma once

namespace coupler {

// accelerator.h, accelerator_options.h, processes.h
class Accelerator;
struct AcceleratorOptions;
class Processes;
class Mesh;
class PartialState;
class AcceleratorState;
class GradientState;

// group.h, comm_hook.h
class Group;
class GradientBucket;
class GradientFuture;
enum class ReduceOp;

// data_loader.h, sampler.h
namespace detail {
struct DefaultCollate;
}
template <class Dataset, class CollateFn = detail::DefaultCollate>
class DataLoader;
class Sampler;
class BatchSampler;
struct DataLoaderOptions;
class TensorDataset;
struct LoaderCursor;

// dataset.h, row.h
class Dataset;
struct LoadDatasetOptions;
struct TensorFormat;
struct DatasetBatch;
class Row;
class Value;
struct Feature;

// optimizer.h, local_sgd.h
class Optimizer;
class Scheduler;
class Schedule;
struct ScheduleOptions;
class LocalSGD;
struct LocalSGDOptions;

// empty_weights.h, accelerator.h, autocast.h, activation_checkpoint.h
template <class Module>
class UnwrappedModel;
class FullParameters;
class ScopeGuard;
class AutocastScope;
struct ActivationCheckpointOptions;

// pipeline_layers.h, pipeline_parallel.h
class PipelineLayers;
class PipelineParallel;
class SplitPoints;
struct PipelineOptions;

// tensor_parallel.h, context_parallel.h, mixture_of_experts.h
struct SequenceTensor;
struct TensorRule;
class TensorParallelLayers;
struct ParallelCrossEntropyOptions;
struct MixtureOfExpertsOptions;
enum class ExpertActivation;

// big_model.h, device_map.h, empty_weights.h
class DispatchedModel;
struct LoadOptions;
struct DispatchOptions;
struct LoadAndDispatchOptions;
class DeviceMap;
struct DeviceMapOptions;
class MaxMemory;
class EmptyWeights;
struct EmptyWeightsOptions;
struct QuantizeOptions;
struct QuantizationReport;

// lora.h, hooks.h, layerwise_casting.h
class LoraAdapter;
struct LoraOptions;
struct LoadLoraOptions;
class HookHandle;
struct LayerHooks;
class LayerwiseCasting;
struct LayerwiseCastingOptions;

// state_dict.h, checkpoint.h
class SafeTensors;
class StateDict;
struct SaveModelOptions;
struct LoadModelOptions;
class CheckpointContents;

// logging.h, tracker.h, accelerator_options.h
class Logger;
enum class LogLevel;
class ProgressBar;
class Tracker;
struct TrackerOptions;
struct ProfileOptions;

// error.h, launch.h
class Error;
enum class ErrorCode;
struct LaunchOptions;

}  // namespace coupler
