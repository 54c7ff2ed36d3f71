#include <coupler/error.h>
#include <fmt/format.h>

#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/restore.h"
#include "checkpoint/snapshot.h"
#include "optim/torch_state.h"
#include "tensors/safetensors.h"

namespace coupler::checkpoint {
namespace {

using nlohmann::json;

// At most this many problems are listed; the rest are only counted.
constexpr size_t kNamed = 20;

class Problems {
 public:
  void add(std::string text) {
    if (texts_.size() < kNamed) texts_.push_back(std::move(text));
    ++count_;
  }
  void throw_if_any(const std::string& folder) const {
    if (count_ == 0) return;
    std::string text;
    for (const std::string& line : texts_) text += "\n  " + line;
    if (count_ > texts_.size()) text += fmt::format("\n  and {} more", count_ - texts_.size());
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the checkpoint {} does not match this program:{}", folder, text),
                {.subject = folder,
                 .hint = "resume with the models, optimizers and objects that were saved, or start "
                         "from scratch with -o checkpoint.resume=no"});
  }

 private:
  std::vector<std::string> texts_;
  size_t count_ = 0;
};

// What an object of the manifest has under a key; an empty value of the type if it has none.
json member_of(const json& object, const char* key, json::value_t type) {
  const auto found = object.find(key);
  return found == object.end() || found->type() != type ? json(type) : *found;
}
json list_of(const json& object, const char* key) {
  return member_of(object, key, json::value_t::array);
}

bool same_number(Problems& problems, const std::string& what, size_t saved, size_t here) {
  if (saved == here) return true;
  problems.add(fmt::format("it has {} {}, the program has {}", saved, what, here));
  return false;
}

std::string describe_entry(const json& entry) {
  return entry.is_array() && entry.size() == 2
             ? fmt::format("{} {}", entry[0].dump(), entry[1].dump())
             : entry.dump();
}

void check_model(Problems& problems, const json& saved, const TrainingState& job, size_t index) {
  const strategy::ModelState& state = *job.models[index];
  const strategy::Model& model = state.model();
  if (job.leaves_out_all(index)) return;
  const std::string where = index == 0 ? "" : fmt::format(" of model {}", index);
  const json tensors = member_of(saved, "tensors", json::value_t::object);
  const json aliases = member_of(saved, "aliases", json::value_t::object);
  std::set<std::string> known;
  const auto check = [&](const std::string& name, const std::vector<int64_t>& sizes,
                         at::ScalarType type) {
    std::string stored = name;
    if (!tensors.contains(stored) && aliases.contains(stored) && aliases[stored].is_string()) {
      stored = aliases[stored].get<std::string>();
    }
    known.insert(stored);
    if (job.leaves_out(index, name)) return;
    const auto found = tensors.find(stored);
    if (found == tensors.end()) {
      problems.add(fmt::format("tensor '{}'{} is missing", name, where));
      return;
    }
    const json wanted = {std::string(safetensors::to_string(safetensors::dtype_of(type, name))),
                         sizes};
    if (*found != wanted) {
      problems.add(fmt::format("tensor '{}'{} is {}, the program's is {}", name, where,
                               describe_entry(*found), describe_entry(wanted)));
    }
  };
  for (size_t i = 0; i < model.parameters.size(); ++i)
    check(model.parameters[i].name, model.parameters[i].whole_sizes(), state.stored_type(i));
  for (const auto& [name, buffer] : model.buffers)
    check(name, buffer.sizes().vec(), buffer.scalar_type());
  for (const auto& [alias, name] : model.aliases) known.insert(alias);
  for (const auto& [name, entry] : tensors.items()) {
    if (!known.contains(name))
      problems.add(fmt::format("tensor '{}'{} is unexpected", name, where));
  }
}

void check_optimizer(Problems& problems, const json& saved, const TrainingState& job,
                     size_t index) {
  optim::OptimizerState& optimizer = *job.optimizers[index];
  const std::string type = optim::optimizer_type(optimizer.torch_optimizer());
  const std::string where = fmt::format("optimizer {}", index);
  const std::string saved_type = saved.value("type", "");
  if (saved_type != type) {
    problems.add(fmt::format("{} is {}, the program's is {}", where, saved_type, type));
    return;
  }
  const json groups = list_of(saved, "groups");
  if (!same_number(problems, fmt::format("parameter groups in {}", where), groups.size(),
                   optimizer.given().size())) {
    return;
  }
  const auto names = parameter_names(job, optimizer);
  for (size_t g = 0; g < groups.size(); ++g) {
    if (optimizer.has_whole_state() && list_of(groups[g], "parameters") != json(names[g])) {
      problems.add(fmt::format("the parameters of {} are others, or in another order", where));
    }
    same_number(problems, fmt::format("parameters in group {} of {}", g, where),
                list_of(groups[g], "parameters").size(), optimizer.given()[g].size());
    const auto copy = optimizer.torch_optimizer().param_groups()[g].options().clone();
    try {
      optim::set_options(optimizer.torch_optimizer(), *copy,
                         member_of(groups[g], "options", json::value_t::object));
    } catch (const Error& error) {
      problems.add(fmt::format("{}: {}", where, error.what()));
    }
  }
}

void check_loader(Problems& problems, const json& saved, const detail::LoaderCore& loader,
                  size_t index) {
  try {
    loader.check_state(cursor_of(saved));
  } catch (const Error& error) {
    problems.add(fmt::format("data loader {}: {}; {}", index, without_hint(error.what()),
                             hint_in(error.what())));
  } catch (const json::exception& problem) {
    problems.add(fmt::format("data loader {} cannot be read: {}", index, problem.what()));
  }
}

}  // namespace

void check_fits(const TrainingState& job, const Manifest& manifest, const std::string& folder) {
  Problems problems;
  const json models = list_of(manifest.state, "models");
  if (same_number(problems, "models", models.size(), job.models.size())) {
    for (size_t m = 0; m < job.models.size(); ++m) {
      check_model(problems, models[m], job, m);
    }
  }
  const json optimizers = list_of(manifest.state, "optimizers");
  if (same_number(problems, "optimizers", optimizers.size(), job.optimizers.size())) {
    for (size_t o = 0; o < job.optimizers.size(); ++o) {
      check_optimizer(problems, optimizers[o], job, o);
    }
  }
  same_number(problems, "schedulers", list_of(manifest.state, "schedulers").size(),
              job.schedulers.size());
  const json loaders = list_of(manifest.state, "loaders");
  if (same_number(problems, "data loaders", loaders.size(), job.loaders.size())) {
    for (size_t l = 0; l < job.loaders.size(); ++l) {
      check_loader(problems, loaders[l], *job.loaders[l], l);
    }
  }
  const json objects = member_of(manifest.state, "objects", json::value_t::number_unsigned);
  same_number(problems, "registered objects", objects.get<size_t>(), job.objects.size());
  problems.throw_if_any(folder);
}

}  // namespace coupler::checkpoint
