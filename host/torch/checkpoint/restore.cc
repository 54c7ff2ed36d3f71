#include "checkpoint/restore.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <coupler/data_loader.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <cstdlib>
#include <mutex>

#include "checkpoint/folder.h"
#include "checkpoint/names.h"
#include "checkpoint/snapshot.h"
#include "checkpoint/state_values.h"
#include "device/device_memory.h"
#include "empty_weights/recording.h"
#include "optim/torch_state.h"
#include "residency/unit.h"
#include "tensors/safetensors.h"

namespace coupler::checkpoint {

void PieceReader::read(const std::string& tensor, const at::Tensor& values, int64_t begin,
                       const sharding::Division& division) {
  const auto found = files_.tensors().find(tensor);
  if (values.numel() > 0 && found != files_.tensors().end()) {
    const auto dtype = safetensors::scalar_type(found->second.dtype, tensor);
    if (dtype != values.scalar_type()) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("{}: tensor '{}' is {}, but the program's is {}",
                      files_.path(found->second.parts.front()), tensor, c10::toString(dtype),
                      c10::toString(values.scalar_type())),
          {.subject = tensor, .hint = "load it into a model with the dtypes it was saved with"});
    }
  }
  const bool in_place = values.is_contiguous() && values.device().is_cpu();
  const at::Tensor into =
      in_place ? values : at::empty(values.sizes(), values.options().device(at::kCPU));
  {
    const residency::InUse in_memory(into, residency::InUse::Access::kWrite);
    char* const memory = static_cast<char*>(into.mutable_data_ptr());
    division.each_run(begin, begin + values.numel(), [&](int64_t at, int64_t from, int64_t count) {
      files_.read(tensor, from, from + count,
                  memory + static_cast<size_t>(at - begin) * into.element_size());
    });
  }
  if (!in_place) values.copy_(into);
}

void PieceReader::read_all(
    const std::function<void(const std::string&, const at::Tensor&)>& visit) {
  for (const auto& [name, tensor] : files_.tensors()) {
    const PieceFiles::Part& first = tensor.parts.front();
    const at::Tensor value =
        at::empty(first.shape, at::TensorOptions(safetensors::scalar_type(tensor.dtype, name)));
    read(name, value);
    visit(name, value);
  }
}

using nlohmann::json;

namespace {

// Runs code that reads JSON, which may have been edited by hand.
template <class Read>
void with_json(const std::string& folder, const char* what, const Read& read) {
  try {
    read();
  } catch (const json::exception& problem) {
    refuse_checkpoint(folder,
                      fmt::format("cannot read the state of the {}: {}", what, problem.what()));
  }
}

void restore_model(const TrainingState& job, size_t index, const json& saved, PieceReader& reader) {
  const strategy::Model& model = job.models[index]->model();
  const json aliases = saved.value("aliases", json::object());
  const auto stored = [&](const std::string& name) {
    return reader.has(name) || !aliases.contains(name) ? name : aliases[name].get<std::string>();
  };
  for (const strategy::ParameterPart& part : job.models[index]->parts()) {
    const strategy::ModelParameter& parameter = model.parameters[part.parameter];
    if (!job.leaves_out(index, parameter.name))
      reader.read(stored(parameter.name), part.values, part.begin, part.division);
  }
  for (const auto& [name, buffer] : model.buffers) {
    if (!job.leaves_out(index, name)) reader.read(stored(name), buffer);
  }
}

// Of an object in one of the reader's files, the others of which are empty.
StateDict read_state(PieceReader& reader, const char* what, const std::string& folder) {
  StateDict state;
  for (const auto& metadata : reader.metadata()) {
    const auto values = metadata.find(kValuesKey);
    if (values == metadata.end()) continue;
    with_json(folder, what, [&] { set_values(state, values->second); });
  }
  reader.read_all(
      [&](const std::string& key, const at::Tensor& tensor) { state.set(key, tensor); });
  return state;
}

// Of a file of its own.
StateDict read_state_file(const std::string& name, const char* what, const Manifest& manifest,
                          const std::string& folder) {
  PieceReader reader(folder, manifest, {name});
  return read_state(reader, what, folder);
}

void restore_object(detail::Stateful& object, size_t index, const Manifest& manifest,
                    const std::string& folder) {
  object.load(
      read_state_file(object_base(index) + kExtension, "registered object", manifest, folder));
}

struct KnownState {
  int64_t steps = 0;
  std::vector<std::string> names;
};

// What the ranks that wrote the optimizer's files recorded, by parameter.
std::map<std::string, KnownState> known_states(const PieceReader& reader,
                                               const std::string& folder) {
  std::map<std::string, KnownState> known;
  for (const auto& metadata : reader.metadata()) {
    const auto found = metadata.find(kOptimizerKey);
    if (found == metadata.end()) continue;
    with_json(folder, "optimizer", [&] {
      for (const json& entry : json::parse(found->second)) {
        const KnownState state{entry.at("steps").get<int64_t>(),
                               entry.at("state").get<std::vector<std::string>>()};
        for (const json& name : entry.at("parameters")) known[name.get<std::string>()] = state;
      }
    });
  }
  return known;
}

void restore_states(const TrainingState& job, optim::OptimizerState& optimizer, PieceReader& reader,
                    const std::string& folder) {
  const auto known = known_states(reader, folder);
  for (const OptimizerPart& part : parts_of(job, optimizer)) {
    const auto found = known.find(part.name);
    if (found == known.end()) {
      optimizer.forget(part.part.optimizer_tensor);
      continue;
    }
    const optim::ParameterState state =
        optimizer.make_state(part.part.optimizer_tensor, found->second.steps, found->second.names);
    for (const auto& [name, values] : state.tensors) {
      const StatePiece piece = state_piece(part, name, values);
      reader.read(piece.name, piece.values, piece.begin, piece.division);
    }
  }
}

void restore_optimizer(const TrainingState& job, size_t index, const json& saved,
                       const Manifest& manifest, const std::string& folder) {
  optim::OptimizerState& optimizer = *job.optimizers[index];
  PieceReader reader(folder, manifest, files_of(manifest, numbered("optimizer", index)));
  if (optimizer.has_whole_state()) {
    optimizer.load_whole_state(read_state(reader, "optimizer", folder));
  } else {
    restore_states(job, optimizer, reader, folder);
  }
  with_json(folder, "optimizer", [&] {
    auto& groups = optimizer.torch_optimizer().param_groups();
    for (size_t g = 0; g < groups.size(); ++g) {
      optim::set_options(optimizer.torch_optimizer(), groups[g].options(),
                         saved.at("groups").at(g).at("options"));
    }
    optimizer.set_steps(saved.at("steps").get<int64_t>());
  });
}

void restore_loader(const TrainingState& job, size_t index, const json& saved,
                    const Manifest& manifest, const std::string& folder) {
  LoaderCursor cursor = cursor_of(saved);
  if (saved.value("has_sampler", false))
    cursor.sampler = read_state_file(sampler_file(index), "sampler", manifest, folder);
  if (saved.value("has_stream", false))
    cursor.stream = read_state_file(stream_file(index, job.sample_rank, cursor.parts), "stream",
                                    manifest, folder);
  job.loaders[index]->load_state(cursor);
}

// What a rank carries belongs to its own gradients: with other ranks or settings it is reset, on
// all ranks.
void restore_carried(const TrainingState& job, const Manifest& manifest, PieceReader& reader) {
  for (size_t m = 0; m < job.models.size(); ++m) {
    for (const strategy::StateTensor& state : job.models[m]->state_tensors()) {
      const at::Tensor& values = state.tensor;
      const std::string saved = carried_prefix(m) + state.name;
      const bool same = job.world_size == manifest.world_size && reader.has(saved) &&
                        reader.shape(saved) == values.sizes().vec();
      if (!same) {
        values.zero_();
        continue;
      }
      reader.read(saved, values);
    }
  }
}

// A rank that did not exist when the checkpoint was written draws its own numbers.
void restore_random(const TrainingState& job, const Manifest& manifest, const std::string& folder) {
  const int from = job.rank < manifest.world_size ? job.rank : 0;
  PieceReader reader(folder, manifest, {random_base(from) + kExtension});
  const auto restore = [&](const char* name, at::Generator generator) {
    const std::lock_guard lock(generator.mutex());
    const at::Tensor state = generator.get_state();
    reader.read(name, state);
    generator.set_state(state);
  };
  restore(kTorchGenerator, at::detail::getDefaultCPUGenerator());
  // A checkpoint from the CPU has none: the device's generator keeps its seed.
  const auto devices = device::device_generator(job.device);
  if (devices && reader.has(kDeviceGenerator)) restore(kDeviceGenerator, *devices);
  for (int rank = manifest.world_size; rank <= job.rank; ++rank) {
    empty_weights::write_generator(empty_weights::derived_state(empty_weights::read_generator()));
  }
  restore_carried(job, manifest, reader);
  if (!job.own_buffers || job.world_size != manifest.world_size) return;
  for (size_t m = 0; m < job.models.size(); ++m) {
    for (const auto& [name, buffer] : job.models[m]->model().buffers) {
      const std::string own = own_buffer_prefix(m) + name;
      if (!job.leaves_out(m, name) && reader.has(own)) reader.read(own, buffer);
    }
  }
}

Scheduler::State scheduler_state(const json& saved) {
  return {.steps = saved.at("steps").get<int64_t>(),
          .rates = saved.at("rates").get<std::vector<double>>(),
          .base_rates = saved.at("base_rates").get<std::vector<double>>(),
          .best = std::strtod(saved.at("best").get_ref<const std::string&>().c_str(), nullptr),
          .bad_epochs = saved.at("bad_epochs").get<int64_t>(),
          .cooldown = saved.at("cooldown").get<int64_t>()};
}

}  // namespace

LoaderCursor cursor_of(const json& saved) {
  return {.epoch = saved.at("epoch").get<int64_t>(),
          .samples = saved.at("samples").get<int64_t>(),
          .seed = saved.at("seed").get<uint64_t>(),
          .dataset_samples = saved.at("dataset_samples").get<int64_t>(),
          .batches = saved.value("batches", int64_t{0}),
          .parts = saved.value("parts", int64_t{0})};
}

std::set<std::string> left_out_of(const json& saved_model) {
  std::set<std::string> names;
  const auto found = saved_model.find("left_out");
  if (found == saved_model.end() || !found->is_array()) return names;
  for (const json& name : *found) {
    if (name.is_string()) names.insert(name.get<std::string>());
  }
  return names;
}

StateDict read_extra(const Manifest& manifest, const std::string& folder) {
  if (!manifest.state.contains("extra")) return {};
  PieceReader reader(folder, manifest, {std::string(kExtraBase) + kExtension});
  return read_state(reader, "hooks", folder);
}

void restore(const TrainingState& job, const Manifest& manifest, const std::string& folder) {
  const at::NoGradGuard no_grad;
  const json& state = manifest.state;
  for (size_t m = 0; m < job.models.size(); ++m) {
    PieceReader reader(folder, manifest, files_of(manifest, numbered("model", m)));
    with_json(folder, "models", [&] { restore_model(job, m, state.at("models").at(m), reader); });
  }
  for (size_t o = 0; o < job.optimizers.size(); ++o) {
    restore_optimizer(job, o, state.at("optimizers").at(o), manifest, folder);
  }
  for (size_t i = 0; i < job.objects.size(); ++i) {
    restore_object(*job.objects[i], i, manifest, folder);
  }
  with_json(folder, "schedulers, loaders and loss scale", [&] {
    for (size_t s = 0; s < job.schedulers.size(); ++s) {
      job.schedulers[s]->load_state(scheduler_state(state.at("schedulers").at(s)));
    }
    for (size_t l = 0; l < job.loaders.size(); ++l) {
      restore_loader(job, l, state.at("loaders").at(l), manifest, folder);
    }
    if (job.scaler != nullptr && state.contains("scaler")) {
      const json& scaler = state["scaler"];
      job.scaler->load_state(
          {scaler.at("scale").get<double>(), scaler.at("good_steps").get<int64_t>()});
    }
  });
  restore_random(job, manifest, folder);
}

}  // namespace coupler::checkpoint
