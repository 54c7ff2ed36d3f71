#include "tensor_parallel/divided_parameter.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "empty_weights/empty_weights.h"
#include "tensors/tensor_ops.h"

namespace coupler::tensor_parallel {
namespace {

// [blocks of all dimensions before, ranks, elements of a run] of the whole.
std::vector<int64_t> grid_of(const strategy::ParameterDivision& division) {
  const auto dim = static_cast<size_t>(division.dim);
  int64_t outer = division.blocks;
  for (size_t d = 0; d < dim; ++d) outer *= division.sizes[d];
  return {outer, division.elements.ranks, division.elements.run};
}

// The groups that parameters of the model are divided over, in the same order on every rank.
std::vector<Group> groups_of(const strategy::Model& model) {
  std::vector<Group> result;
  for (const strategy::ModelParameter& parameter : model.parameters) {
    const bool known = std::find(result.begin(), result.end(), parameter.parts) != result.end();
    if (parameter.parts != nullptr && !known) result.push_back(parameter.parts);
  }
  return result;
}

// Which of a model's parameters the norm is about, divided over this group; null: whole.
strategy::GradientNorm only(const strategy::Model& model, const strategy::GradientNorm& which,
                            const Group& group) {
  strategy::GradientNorm result{.type = which.type, .parameters = std::set<size_t>()};
  for (size_t i = 0; i < model.parameters.size(); ++i) {
    if (which.covers(i) && model.parameters[i].parts == group) result.parameters->insert(i);
  }
  return result;
}

at::Tensor put_together(const at::Tensor& part, const strategy::ParameterDivision& division,
                        const Group& group) {
  const at::NoGradGuard no_grad;
  const std::vector<int64_t> grid = grid_of(division);
  const at::Tensor mine = part.detach().contiguous().view({grid[0], grid[2]});
  const at::Tensor all = at::empty({grid[1], grid[0], grid[2]}, mine.options());
  group->run(tensors::all_gather_op(mine, all));
  return all.transpose(0, 1).contiguous().view(division.sizes);
}

// Divided parameters of the process, for code that has a tensor and no model. The weak pointer
// keeps a parameter's address from being reused.
struct KnownParts {
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> parameter;
  strategy::ParameterDivision division;
  std::weak_ptr<comm::Communicator> group;
};
struct PartsTable {
  std::mutex mutex;
  std::unordered_map<const c10::TensorImpl*, KnownParts> parameters;
};
PartsTable& parts_table() {
  static auto* const kTable = new PartsTable;  // models may outlive the end of main
  return *kTable;
}

void remember(const at::Tensor& parameter, const strategy::ParameterDivision& division,
              const Group& group) {
  PartsTable& table = parts_table();
  const std::lock_guard lock(table.mutex);
  std::erase_if(table.parameters,
                [](const auto& entry) { return entry.second.parameter.expired(); });
  table.parameters.insert_or_assign(
      parameter.unsafeGetTensorImpl(),
      KnownParts{decltype(KnownParts::parameter)(parameter.getIntrusivePtr()), division, group});
}

std::optional<KnownParts> known_parts_of(const at::Tensor& parameter) {
  PartsTable& table = parts_table();
  const std::lock_guard lock(table.mutex);
  const auto found = table.parameters.find(parameter.unsafeGetTensorImpl());
  if (found == table.parameters.end()) return std::nullopt;
  return found->second;
}

}  // namespace

at::Tensor part_of(const at::Tensor& whole, const strategy::ParameterDivision& division) {
  return whole.contiguous()
      .view(grid_of(division))
      .select(1, division.elements.rank)
      .clone(at::MemoryFormat::Contiguous)
      .view(division.part_sizes());
}

void copy_from_chunk(const at::Tensor& chunk, int64_t begin,
                     const strategy::ParameterDivision& division, const at::Tensor& part) {
  const sharding::Division& elements = division.elements;
  // How many elements of the part come before this one of the tensor.
  const auto before = [&](int64_t of_tensor) {
    return elements.in_part(elements.next_in_tensor(of_tensor));
  };
  const size_t size = chunk.itemsize();
  const char* const from = static_cast<const char*>(chunk.const_data_ptr());
  char* const to = static_cast<char*>(part.mutable_data_ptr());
  elements.each_run(before(begin), before(begin + chunk.numel()),
                    [&](int64_t of_part, int64_t of_tensor, int64_t count) {
                      std::memcpy(to + static_cast<size_t>(of_part) * size,
                                  from + static_cast<size_t>(of_tensor - begin) * size,
                                  static_cast<size_t>(count) * size);
                    });
}

void set_own_value(strategy::ModelParameter& parameter, const at::Tensor& own,
                   std::optional<strategy::ParameterDivision> division, const Group& group) {
  if (parameter.tensor.is_meta()) {
    parameter.tensor.set_data(at::empty(own.sizes(), parameter.tensor.options()));
    empty_weights::put_value(parameter.tensor, own);
  } else {
    parameter.tensor.mutable_grad() = at::Tensor();
    empty_weights::set_value(parameter.tensor, own);
  }
  if (!division) return;
  remember(parameter.tensor, *division, group);
  parameter.division = std::move(division);
  parameter.parts = group;
}

void take_value(strategy::ModelParameter& parameter, const at::Tensor& whole,
                std::optional<strategy::ParameterDivision> division, const Group& group) {
  const at::Tensor dense = whole.contiguous();
  group->run(tensors::broadcast_op(dense, 0));
  const at::Tensor own = division ? part_of(dense, *division) : dense;
  set_own_value(parameter, own, std::move(division), group);
}

at::Tensor whole_of(const strategy::Model& model, size_t parameter, const at::Tensor& part) {
  const auto& division = model.parameters[parameter].division;
  if (!division || !part.defined()) return part;
  return put_together(part, *division, model.parameters[parameter].parts);
}

at::Tensor whole_value(const at::Tensor& parameter) {
  const at::NoGradGuard no_grad;
  const at::Tensor own = parameter.detach().clone();  // of a sharded one, gathered for this
  const std::optional<KnownParts> parts = known_parts_of(parameter);
  if (!parts) return own;
  const Group group = parts->group.lock();
  if (group != nullptr) return put_together(own, parts->division, group);
  throw Error(ErrorCode::kUsage,
              fmt::format("a parameter of [{}] is a part of [{}], but the Accelerator that divided "
                          "it has ended",
                          fmt::join(own.sizes(), ", "), fmt::join(parts->division.sizes, ", ")),
              {.hint = "save it before the Accelerator ends"});
}

double gradient_norm(strategy::Strategy& strategy, const strategy::GradientNorm& which) {
  const strategy::Model& model = strategy.model();
  const std::vector<Group> groups = groups_of(model);
  if (groups.empty()) return strategy.gradient_norm(which);
  // Ranks have other gradients of divided parameters, and one of them may throw alone.
  std::optional<Error> problem;
  double power = 0;
  for (const Group& group : groups) {
    double own = 0;
    try {
      own = which.power_of(strategy.gradient_norm(only(model, which, group)));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalidArgument) throw;
      problem = error;
      own = std::numeric_limits<double>::infinity();
    }
    own = tensors::all_reduce_number(*group, own, which.is_maximum() ? DB_MAX : DB_SUM);
    power = which.together(power, own);
  }
  if (problem) throw Error(*problem);
  if (!std::isfinite(power)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("clip_grad_norm: the norm of the gradients is {}: another rank has "
                            "infinite or NaN elements in its parts of '{}'",
                            which.norm_of(power), model.name),
                {.hint = "see the error of that rank"});
  }
  const double rest = strategy.gradient_norm(only(model, which, /*group=*/nullptr));
  return which.norm_of(which.together(power, which.power_of(rest)));
}

}  // namespace coupler::tensor_parallel
