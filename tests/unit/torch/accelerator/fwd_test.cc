// The declarations in coupler/fwd.h match the definitions in the other headers: a different kind,
// template or underlying type would not compile, and every declared name is defined.
#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wmismatched-tags"
#include <coupler/fwd.h>
// The definitions.
#include <coupler/coupler.h>
#include <coupler/launch.h>
#pragma GCC diagnostic pop
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <regex>
#include <string>

namespace coupler {
namespace {

template <class... Types>
constexpr size_t defined() {
  return ((sizeof(Types) > 0 ? 1 : 0) + ...);
}

using Data = TensorDataset;

TEST(Fwd, EveryNameIsDefinedByCouplersHeaders) {
  const size_t types =
      defined<Accelerator, AcceleratorOptions, Processes, Mesh, Group, PartialState,
              AcceleratorState, GradientState, GradientBucket, GradientFuture, ReduceOp,
              detail::DefaultCollate, DataLoader<Data>, Sampler, BatchSampler, DataLoaderOptions,
              TensorDataset, LoaderCursor, Dataset, LoadDatasetOptions, TensorFormat, DatasetBatch,
              Row, Value, Feature, Optimizer, Scheduler, Schedule, ScheduleOptions, LocalSGD,
              LocalSGDOptions, UnwrappedModel<torch::nn::Linear>, FullParameters, ScopeGuard,
              AutocastScope, ActivationCheckpointOptions, PipelineLayers, PipelineParallel,
              SplitPoints, PipelineOptions, SequenceTensor, TensorRule, TensorParallelLayers,
              ParallelCrossEntropyOptions, MixtureOfExpertsOptions, ExpertActivation,
              DispatchedModel, LoadOptions, DispatchOptions, LoadAndDispatchOptions, DeviceMap,
              DeviceMapOptions, MaxMemory, EmptyWeights, EmptyWeightsOptions, QuantizeOptions,
              QuantizationReport, LoraAdapter, LoraOptions, LoadLoraOptions, HookHandle, LayerHooks,
              LayerwiseCasting, LayerwiseCastingOptions, SafeTensors, StateDict, SaveModelOptions,
              LoadModelOptions, CheckpointContents, Logger, LogLevel, ProgressBar, Tracker,
              TrackerOptions, ProfileOptions, Error, ErrorCode, LaunchOptions>();
  std::ifstream file(COUPLER_SOURCE_DIR "/host/include/coupler/fwd.h");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::regex declaration("\n(class|struct|enum class) [A-Za-z]+;");
  const auto count = std::distance(std::sregex_iterator(text.begin(), text.end(), declaration), {});
  EXPECT_EQ(static_cast<size_t>(count), types) << "add the new name to this list, too";
}

}  // namespace
}  // namespace coupler
