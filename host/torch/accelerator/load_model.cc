// Loads weights into a prepared model: load_model.
#include <coupler/accelerator.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <set>
#include <utility>

#include "accelerator/accelerator.h"
#include "accelerator/consistency_check.h"
#include "base/durable_file.h"
#include "base/mapped_file.h"
#include "big_model/host_value.h"
#include "big_model/load_weights.h"
#include "precision/precision.h"
#include "residency/unit.h"
#include "tensors/safetensors.h"
#include "weights/open_weights.h"
#include "weights/weight_source.h"

namespace coupler {
namespace {

using weights::WeightSource;
using weights::WeightTensor;

// Elements of a loaded tensor, and where this rank keeps them.
struct LoadedRange {
  const WeightTensor* from;
  int64_t begin = 0;
  at::Tensor values;
  sharding::Division division = {};
};

// Its tensors must outlive the source.
WeightSource source_of(const std::map<std::string, at::Tensor>& state_dict) {
  WeightSource source;
  for (const auto& [name, tensor] : state_dict) {
    if (!tensor.defined() || tensor.is_meta()) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("load_model: '{}' in the state dict has no values", name),
                  {.subject = name, .hint = "pass tensors that have values"});
    }
    const auto send = [tensor = tensor.detach()](uint64_t begin, uint64_t end,
                                                 const weights::ByteSink& sink) {
      const at::Tensor dense = tensor.to(at::kCPU).contiguous();
      weights::send_chunks(static_cast<const uint8_t*>(dense.const_data_ptr()) + begin, end - begin,
                           sink);
    };
    source.tensors.push_back({.name = name,
                              .dtype = safetensors::dtype_of(tensor.scalar_type(), name),
                              .shape = tensor.sizes().vec(),
                              .read = [send, bytes = tensor.nbytes()](
                                          const weights::ByteSink& sink) { send(0, bytes, sink); },
                              .read_range = send});
  }
  return source;
}

// What ranks compare: the tensors' descriptions and, with `values`, their bytes.
int64_t source_signature(const WeightSource& source, bool values) {
  SignatureHash hash;
  for (const WeightTensor& tensor : source.tensors) {
    hash.add(tensor.name);
    hash.add(static_cast<uint64_t>(tensor.dtype));
    for (const int64_t size : tensor.shape) hash.add(static_cast<uint64_t>(size));
    if (!values) continue;
    tensor.read([&](const char* bytes, size_t size) { hash.add(chunk_sum(bytes, size)); });
  }
  return static_cast<int64_t>(hash.low());
}

std::vector<LoadedRange> ranges_of(strategy::Strategy& strategy,
                                   const std::vector<const WeightTensor*>& found) {
  const strategy::Model& model = strategy.model();
  std::vector<LoadedRange> ranges;
  for (const strategy::ParameterPart& part : strategy.parts()) {
    if (found[part.parameter] == nullptr) continue;
    ranges.push_back({found[part.parameter], part.begin, part.values, part.division});
  }
  for (size_t i = 0; i < model.buffers.size(); ++i) {
    const WeightTensor* const from = found[model.parameters.size() + i];
    if (from != nullptr) ranges.push_back({from, 0, model.buffers[i].second});
  }
  return ranges;
}

// Of the files that are read; kept while they are.
std::vector<std::shared_ptr<const void>> guards_of(const std::vector<LoadedRange>& ranges) {
  std::set<std::shared_ptr<const MappedFile>> files;
  for (const LoadedRange& range : ranges) {
    if (range.from->place.file != nullptr) files.insert(range.from->place.file);
  }
  std::vector<std::shared_ptr<const void>> guards;
  for (const auto& file : files) guards.push_back(guard_mapping(file));
  return guards;
}

template <class Action>
std::optional<Error> load_problem(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  } catch (const std::exception& error) {
    return Error(ErrorCode::kInternal, fmt::format("load_model: {}", error.what()));
  }
  return std::nullopt;
}

}  // namespace

void Accelerator::load_model_of(const detail::ModelRef& reference, const std::string& where,
                                const std::map<std::string, at::Tensor>* state_dict,
                                const LoadModelOptions& options) {
  strategy::Strategy& strategy = impl_->strategy_of(reference);
  if (impl_->dry_run != nullptr) return;
  const at::NoGradGuard no_grad;
  strategy.synchronize();
  // Throws if the parameters cannot be replaced now, before any of them is.
  strategy.parameters_changed(strategy::ParameterWriter::kCheckpoint);
  WeightSource source;
  std::vector<LoadedRange> ranges;
  int64_t signature = 0;
  std::vector<std::shared_ptr<const void>> guards;
  std::optional<Error> problem = load_problem([&] {
    source = state_dict != nullptr ? source_of(*state_dict) : weights::open_weights(where, {});
    if (options.rename) big_model::apply_names(options.rename, source, where);
    ranges = ranges_of(strategy,
                       big_model::match_tensors(strategy.model(), source, where, options.strict));
    guards = guards_of(ranges);
    for (const LoadedRange& range : ranges)
      big_model::check_range(*range.from, range.begin, range.values.numel(), range.division);
    signature = source_signature(source, state_dict != nullptr);
  });
  require_same(
      check_consistency(*impl_->comm,
                        {.operation = "load_model", .number = signature, .problem = problem}),
      "load_model", "finds other tensors in " + where, ErrorCode::kMismatch,
      {.subject = where,
       .hint = "give every rank the same tensors, from a file system that all machines share"});
  problem = load_problem([&] {
    for (const LoadedRange& range : ranges) {
      const residency::InUse in_memory(range.values, residency::InUse::Access::kWrite);
      big_model::copy_range(*range.from, range.begin, range.values, range.division);
    }
  });
  if (problem) {
    problem = Error(problem->code(),
                    fmt::format("load_model: '{}' is only partly loaded: {}", strategy.model().name,
                                problem->what()),
                    {.subject = where, .hint = "load it again, or resume from a checkpoint"});
  }
  // Also after a failure: what was written must be what operations see.
  strategy.parameters_changed(strategy::ParameterWriter::kCheckpoint);
  precision::drop_cast_copies();
  check_consistency(*impl_->comm, {.operation = "load_model", .problem = problem});
}

}  // namespace coupler
