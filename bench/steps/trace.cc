#include "trace.h"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <utility>

namespace coupler::bench {
namespace {

using torch::profiler::impl::ActivityType;
const std::set<ActivityType> kActivities = {ActivityType::CPU, ActivityType::CUDA};

}  // namespace

Trace::Trace(std::string path) : path_(std::move(path)) {
  if (path_.empty()) return;
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  torch::autograd::profiler::prepareProfiler(config, kActivities);
  torch::autograd::profiler::enableProfiler(config, kActivities);
}

Trace::~Trace() {
  if (!path_.empty()) torch::autograd::profiler::disableProfiler()->save(path_);
}

}  // namespace coupler::bench
