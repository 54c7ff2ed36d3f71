#include "checkpoint/snapshot.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/accumulate.h>
#include <coupler/data_loader.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "checkpoint/state_values.h"
#include "device/device_memory.h"
#include "formats/safetensors_writer.h"
#include "optim/torch_state.h"
#include "residency/unit.h"
#include "tensors/safetensors.h"

namespace coupler::checkpoint {
namespace {

constexpr uintptr_t kLargePage = uintptr_t{2} << 20;
// A smaller tensor may share its pages with allocations that are not ours.
constexpr size_t kLarge = size_t{32} << 20;

bool fits(const at::Tensor& room, const at::Tensor& tensor) {
  return room.defined() && room.sizes() == tensor.sizes() && room.dtype() == tensor.dtype() &&
         room.is_cpu() && room.is_contiguous();
}

at::Tensor new_room(const at::Tensor& tensor) {
  const at::Tensor room = at::empty(tensor.sizes(), at::TensorOptions(tensor.scalar_type()));
  if (room.nbytes() > kLarge) {
    const auto begin = reinterpret_cast<uintptr_t>(room.mutable_data_ptr());
    const uintptr_t first = (begin + kLargePage - 1) / kLargePage * kLargePage;
    const uintptr_t end = (begin + room.nbytes()) / kLargePage * kLargePage;
    // A hint only.
    ::madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);  // NOLINT: an address
  }
  return room;
}

// Returns a contiguous copy in host memory. It reuses `room`, which may be undefined, if that has
// the same size and dtype: allocating memory takes longer than copying, and many times longer once
// the system has used the memory elsewhere. New memory uses huge pages if the system has them.
at::Tensor clone_into(const at::Tensor& tensor, const at::Tensor& room) {
  const at::Tensor from = tensor.detach();
  const at::Tensor copy = fits(room, from) ? room : new_room(from);
  copy.copy_(from);
  return copy;
}

}  // namespace

StatePiece StatePiece::whole_of(std::string name, const at::Tensor& tensor) {
  return {.name = std::move(name),
          .shape = tensor.sizes().vec(),
          .begin = 0,
          .end = tensor.numel(),
          .values = tensor};
}

bool StatePiece::whole() const {
  return division.is_whole() && begin == 0 && end == c10::multiply_integers(shape);
}

std::string entry_name(const StatePiece& piece) {
  if (piece.whole()) return piece.name;
  // Readers that know no divisions understand as much as possible.
  if (piece.division.is_contiguous(c10::multiply_integers(piece.shape))) {
    const int64_t first = piece.division.in_tensor(piece.begin);
    return part_name(piece.name, first, first + piece.numel());
  }
  return part_name(piece.name, piece.begin, piece.end, piece.division);
}

std::vector<StatePiece> deduplicated(const std::vector<StatePiece>& pieces) {
  // The largest first, each to the rank with the least so far.
  std::vector<size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return pieces[a].values.nbytes() > pieces[b].values.nbytes();
  });
  // Of those that the same ranks hold: they all know the same pieces. By copy.
  std::map<std::pair<int, std::vector<int>>, std::vector<uint64_t>> loads;
  std::vector<bool> own(pieces.size(), false);
  for (const size_t i : order) {
    const StatePiece& piece = pieces[i];
    auto& load = loads[{piece.copies, piece.holders}];
    load.resize(static_cast<size_t>(piece.copies));
    const auto least = std::min_element(load.begin(), load.end());
    own[i] = least - load.begin() == piece.copy;
    *least += piece.values.nbytes() + 1;  // + 1 so that empty pieces are distributed, too
  }
  std::vector<StatePiece> result;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (own[i]) result.push_back(pieces[i]);
  }
  return result;
}

namespace {

using nlohmann::json;

json shape_entry(const std::vector<int64_t>& sizes, at::ScalarType type, const std::string& name) {
  return {std::string(safetensors::to_string(safetensors::dtype_of(type, name))), sizes};
}

json describe_model(const TrainingState& job, size_t index) {
  const strategy::ModelState& state = *job.models[index];
  const strategy::Model& model = state.model();
  json tensors = json::object(), aliases = json::object();
  for (size_t i = 0; i < model.parameters.size(); ++i) {
    const strategy::ModelParameter& parameter = model.parameters[i];
    if (job.leaves_out(index, parameter.name)) continue;
    tensors[parameter.name] =
        shape_entry(parameter.whole_sizes(), state.stored_type(i), parameter.name);
  }
  for (const auto& [name, buffer] : model.buffers) {
    if (!job.leaves_out(index, name))
      tensors[name] = shape_entry(buffer.sizes().vec(), buffer.scalar_type(), name);
  }
  for (const auto& [alias, name] : model.aliases) {
    if (!job.leaves_out(index, name)) aliases[alias] = name;
  }
  json result = {
      {"type", model.name}, {"tensors", std::move(tensors)}, {"aliases", std::move(aliases)}};
  if (index < job.left_out.size() && !job.left_out[index].empty())
    result["left_out"] = job.left_out[index];
  return result;
}

void add_buffers(const TrainingState& job, size_t index, const std::string& prefix,
                 std::vector<StatePiece>& into) {
  for (const auto& [name, buffer] : job.models[index]->model().buffers) {
    if (!job.leaves_out(index, name)) into.push_back(StatePiece::whole_of(prefix + name, buffer));
  }
}

std::vector<StatePiece> model_pieces(const TrainingState& job, size_t index) {
  const strategy::Model& model = job.models[index]->model();
  std::vector<StatePiece> pieces;
  for (const strategy::ParameterPart& part : job.models[index]->parts()) {
    const strategy::ModelParameter& parameter = model.parameters[part.parameter];
    if (job.leaves_out(index, parameter.name)) continue;
    pieces.push_back({.name = parameter.name,
                      .shape = parameter.whole_sizes(),
                      .begin = part.begin,
                      .end = part.end,
                      .values = part.values,
                      .copies = part.copies,
                      .copy = part.copy,
                      .holders = part.holders,
                      .division = part.division});
  }
  std::vector<StatePiece> own = deduplicated(pieces);
  if (job.rank == 0) add_buffers(job, index, "", own);
  return own;
}

// The name by which an optimizer's parameter is known across all models of the job; "" if unknown.
std::string full_name(const TrainingState& job, const optim::OptimizerState::Given& given) {
  size_t index = 0;
  while (index < job.models.size() && job.models[index].get() != given.model) ++index;
  if (given.model == nullptr || index == job.models.size()) return "";
  const std::string& name = given.model->model().parameters[given.parameter].name;
  return parameter_name(index, name);
}

json describe_optimizer(const TrainingState& job, optim::OptimizerState& optimizer) {
  const torch::optim::Optimizer& torch_optimizer = optimizer.torch_optimizer();
  const auto names = parameter_names(job, optimizer);
  json groups = json::array();
  for (size_t g = 0; g < names.size(); ++g) {
    groups.push_back({{"options", optim::options_of(torch_optimizer,
                                                    torch_optimizer.param_groups()[g].options())},
                      {"parameters", names[g]}});
  }
  return {{"type", optim::optimizer_type(torch_optimizer)},
          {"steps", optimizer.steps()},
          {"groups", std::move(groups)}};
}

}  // namespace

std::vector<std::vector<std::string>> parameter_names(const TrainingState& job,
                                                      const optim::OptimizerState& optimizer) {
  std::vector<std::vector<std::string>> result;
  for (const auto& group : optimizer.given()) {
    std::vector<std::string>& names = result.emplace_back();
    for (const optim::OptimizerState::Given& given : group) names.push_back(full_name(job, given));
  }
  return result;
}

std::vector<OptimizerPart> parts_of(const TrainingState& job,
                                    const optim::OptimizerState& optimizer) {
  std::vector<OptimizerPart> result;
  for (size_t m = 0; m < job.models.size(); ++m) {
    const strategy::Model& model = job.models[m]->model();
    std::vector<bool> given(model.parameters.size(), false);
    for (const auto& group : optimizer.given()) {
      for (const optim::OptimizerState::Given& entry : group) {
        if (entry.model == job.models[m].get()) given[entry.parameter] = true;
      }
    }
    for (strategy::ParameterPart& part : job.models[m]->parts()) {
      const at::Tensor& own = part.optimizer_tensor;
      if (!given[part.parameter] || !own.defined() || !own.requires_grad()) continue;
      const strategy::ModelParameter& parameter = model.parameters[part.parameter];
      result.push_back({.name = parameter_name(m, parameter.name),
                        .shape = parameter.whole_sizes(),
                        .part = std::move(part)});
    }
  }
  return result;
}

StatePiece state_piece(const OptimizerPart& part, const std::string& state, at::Tensor values) {
  return {.name = state + "/" + part.name,
          .shape = part.shape,
          .begin = part.part.begin,
          .end = part.part.end,
          .values = std::move(values),
          .copies = part.part.copies,
          .copy = part.part.copy,
          .holders = part.part.holders,
          .division = part.part.division};
}

namespace {

void add_state(const StateDict& state, StateFile& file) {
  file.metadata[kValuesKey] = values_as_json(state);
  for (const auto& [key, tensor] : state.tensors()) {
    file.pieces.push_back(StatePiece::whole_of(key, tensor.detach().to(at::kCPU).contiguous()));
  }
}

StateFile state_file(const StateDict& state, std::string name) {
  StateFile file{.name = std::move(name)};
  add_state(state, file);
  return file;
}

StateFile object_file(const detail::Stateful& object, std::string name) {
  StateDict state;
  object.save(state);
  return state_file(state, std::move(name));
}

bool has_extra(const TrainingState& job) {
  return job.extra != nullptr && !(job.extra->tensors().empty() && job.extra->values().empty());
}

// Parameters with the same steps and state names are listed together.
StateFile optimizer_file(const TrainingState& job, optim::OptimizerState& optimizer,
                         std::string name) {
  StateFile file{.name = std::move(name)};
  if (const auto whole = optimizer.whole_state()) {
    if (job.rank == 0) add_state(*whole, file);
    return file;
  }
  std::map<std::pair<int64_t, std::vector<std::string>>, std::vector<std::string>> known;
  std::vector<StatePiece> pieces;
  for (const OptimizerPart& part : parts_of(job, optimizer)) {
    const optim::ParameterState state = optimizer.state_of(part.part.optimizer_tensor);
    std::vector<std::string> names;
    for (const auto& [state_name, values] : state.tensors) {
      names.push_back(state_name);
      pieces.push_back(state_piece(part, state_name, values));
    }
    if (state.steps > 0 || !state.tensors.empty())
      known[{state.steps, std::move(names)}].push_back(part.name);
  }
  json list = json::array();
  for (const auto& [what, parameters] : known) {
    list.push_back({{"steps", what.first}, {"state", what.second}, {"parameters", parameters}});
  }
  file.metadata[kOptimizerKey] = list.dump();
  file.pieces = deduplicated(pieces);
  return file;
}

bool has_state(const StateDict& state) {
  return !state.values().empty() || !state.tensors().empty();
}

StateFile random_file(const TrainingState& job) {
  StateFile file{.name = random_base(job.rank) + kExtension};
  const auto add = [&](const char* name, at::Generator generator) {
    const std::lock_guard lock(generator.mutex());
    file.pieces.push_back(StatePiece::whole_of(name, generator.get_state()));
  };
  add(kTorchGenerator, at::detail::getDefaultCPUGenerator());
  if (const auto own = device::device_generator(job.device)) add(kDeviceGenerator, *own);
  for (size_t m = 0; m < job.models.size(); ++m) {
    for (const strategy::StateTensor& state : job.models[m]->state_tensors())
      file.pieces.push_back(StatePiece::whole_of(carried_prefix(m) + state.name, state.tensor));
  }
  if (!job.own_buffers) return file;
  for (size_t m = 0; m < job.models.size(); ++m) {
    add_buffers(job, m, own_buffer_prefix(m), file.pieces);
  }
  return file;
}

json describe_job(const TrainingState& job, const std::vector<LoaderCursor>& cursors) {
  json state = {{"models", json::array()},
                {"optimizers", json::array()},
                {"schedulers", json::array()},
                {"loaders", json::array()},
                {"objects", job.objects.size()}};
  for (size_t m = 0; m < job.models.size(); ++m) state["models"].push_back(describe_model(job, m));
  if (has_extra(job)) state["extra"] = true;
  for (const auto& optimizer : job.optimizers) {
    state["optimizers"].push_back(describe_optimizer(job, *optimizer));
  }
  for (const auto& scheduler : job.schedulers) {
    const Scheduler::State it = scheduler->state();
    state["schedulers"].push_back({{"steps", it.steps},
                                   {"rates", it.rates},
                                   {"base_rates", it.base_rates},
                                   {"best", fmt::format("{}", it.best)},  // may be infinite
                                   {"bad_epochs", it.bad_epochs},
                                   {"cooldown", it.cooldown}});
  }
  for (const LoaderCursor& it : cursors) {
    state["loaders"].push_back({{"epoch", it.epoch},
                                {"samples", it.samples},
                                {"seed", it.seed},
                                {"dataset_samples", it.dataset_samples},
                                {"batches", it.batches},
                                {"parts", it.parts},
                                {"has_sampler", has_state(it.sampler)},
                                {"has_stream", has_state(it.stream)}});
  }
  if (job.scaler != nullptr) {
    const optim::GradScaler::State it = job.scaler->state();
    state["scaler"] = {{"scale", it.scale}, {"good_steps", it.good_steps}};
  }
  return state;
}

at::Tensor values_of(const Snapshot* snapshot, size_t file, size_t piece) {
  if (snapshot == nullptr || file >= snapshot->files.size()) return {};
  const auto& pieces = snapshot->files[file].pieces;
  return piece < pieces.size() ? pieces[piece].values : at::Tensor();
}

}  // namespace

int64_t TrainingState::steps() const {
  int64_t result = 0;
  for (const auto& optimizer : optimizers) result = std::max(result, optimizer->steps());
  return result;
}

bool TrainingState::leaves_out_all(size_t model) const {
  const strategy::Model& it = models[model]->model();
  return std::all_of(it.parameters.begin(), it.parameters.end(),
                     [&](const auto& parameter) { return leaves_out(model, parameter.name); }) &&
         std::all_of(it.buffers.begin(), it.buffers.end(),
                     [&](const auto& buffer) { return leaves_out(model, buffer.first); });
}

std::string file_name(const std::string& base, int rank, int world_size) {
  return world_size == 1
             ? base + kExtension
             : fmt::format("{}-{:05}-of-{:05}{}", base, rank + 1, world_size, kExtension);
}

std::string stream_file(size_t loader, int part, int64_t parts) {
  const std::string base = numbered("stream", loader);
  return parts > 0 ? file_name(base, part, static_cast<int>(parts)) : base + kExtension;
}

Snapshot take_snapshot(const TrainingState& job, bool copy, const Snapshot* old) {
  const at::NoGradGuard no_grad;
  std::vector<LoaderCursor> cursors;
  for (const auto& loader : job.loaders) cursors.push_back(loader->state());
  Snapshot result{.files = {}, .state = describe_job(job, cursors), .steps = job.steps()};
  for (size_t m = 0; m < job.models.size(); ++m) {
    StateFile file{.name = file_name(numbered("model", m), job.rank, job.world_size)};
    file.pieces = model_pieces(job, m);
    file.metadata["format"] = "pt";  // what Python readers look for
    for (const auto& [alias, name] : job.models[m]->model().aliases) {
      if (!job.leaves_out(m, name)) file.metadata[alias] = name;
    }
    if (!file.pieces.empty()) result.files.push_back(std::move(file));
  }
  for (size_t o = 0; o < job.optimizers.size(); ++o) {
    result.files.push_back(optimizer_file(
        job, *job.optimizers[o], file_name(numbered("optimizer", o), job.rank, job.world_size)));
  }
  result.files.push_back(random_file(job));
  for (size_t i = 0; job.rank == 0 && i < job.objects.size(); ++i) {
    result.files.push_back(object_file(*job.objects[i], object_base(i) + kExtension));
  }
  for (size_t l = 0; l < cursors.size(); ++l) {
    const LoaderCursor& it = cursors[l];
    const bool in_parts = it.parts > 0;
    if (job.rank == 0 && has_state(it.sampler))
      result.files.push_back(state_file(it.sampler, sampler_file(l)));
    if ((in_parts ? job.first_of_samples : job.rank == 0) && has_state(it.stream))
      result.files.push_back(state_file(it.stream, stream_file(l, job.sample_rank, it.parts)));
  }
  if (job.rank == 0 && has_extra(job)) {
    StateFile& file = result.files.emplace_back();
    file.name = std::string(kExtraBase) + kExtension;
    add_state(*job.extra, file);
  }
  for (size_t f = 0; f < result.files.size(); ++f) {
    for (size_t p = 0; p < result.files[f].pieces.size(); ++p) {
      at::Tensor& values = result.files[f].pieces[p].values;
      values = copy ? clone_into(values, values_of(old, f, p)) : values.detach().contiguous();
    }
  }
  return result;
}

WrittenFile write_pieces(const std::string& path, const std::vector<StatePiece>& pieces,
                         const std::map<std::string, std::string>& metadata) {
  std::vector<safetensors::TensorEntry> entries;
  std::unordered_map<std::string, const at::Tensor*> values;
  for (const StatePiece& piece : pieces) {
    const std::string name = entry_name(piece);
    const auto dtype = safetensors::dtype_of(piece.values.scalar_type(), name);
    entries.push_back(
        {name, dtype, piece.whole() ? piece.shape : std::vector<int64_t>{piece.numel()}});
    values[name] = &piece.values;
  }
  safetensors::Writer writer(path, std::move(entries), {metadata.begin(), metadata.end()});
  for (const safetensors::TensorInfo& info : writer.tensors()) {
    const residency::InUse in_memory(*values.at(info.name));
    const at::Tensor value = values.at(info.name)->cpu();  // one at a time
    writer.write(info.name, value.const_data_ptr(), value.nbytes());
  }
  return writer.finish();
}

}  // namespace coupler::checkpoint
