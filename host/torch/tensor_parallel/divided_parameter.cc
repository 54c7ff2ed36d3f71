#include "tensor_parallel/divided_parameter.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <limits>
#include <optional>
#include <set>

#include "base/error.h"
#include "comm/communicator.h"
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

// Which of a model's parameters the norm is about, divided or not.
strategy::GradientNorm only(const strategy::Model& model, const strategy::GradientNorm& which,
                            bool divided) {
  strategy::GradientNorm result{.type = which.type, .parameters = std::set<size_t>()};
  for (size_t i = 0; i < model.parameters.size(); ++i) {
    if (which.covers(i) && model.parameters[i].division.has_value() == divided)
      result.parameters->insert(i);
  }
  return result;
}

}  // namespace

strategy::ParameterDivision division_of(const std::string& name, at::IntArrayRef sizes, int64_t dim,
                                        const sharding::PlannedLayers& line, int ranks, int rank) {
  const int64_t size = sizes[static_cast<size_t>(dim)];
  const auto& [style, blocks, multiple] = line.style;
  if (size % (blocks * ranks * multiple) != 0) {
    std::string parts = fmt::format("{} ranks", ranks);
    if (blocks > 1) parts += fmt::format(" in each of {} blocks", blocks);
    if (multiple > 1) parts += fmt::format(" in multiples of {}", multiple);
    fail_config(fmt::format("'{}' is [{}], and the {} of dimension {} cannot be divided over {} "
                            "({})",
                            name, fmt::join(sizes, ", "), size, dim, parts, line.text),
                "parallel.tensor",
                "choose a parallel.tensor that divides it, or leave the layer out of the plan");
  }
  int64_t inner = 1;
  for (size_t d = static_cast<size_t>(dim) + 1; d < sizes.size(); ++d) inner *= sizes[d];
  return {.sizes = sizes.vec(),
          .dim = dim,
          .blocks = blocks,
          .elements = sharding::Division::along(size, inner, blocks, ranks, rank)};
}

at::Tensor part_of(const at::Tensor& whole, const strategy::ParameterDivision& division) {
  std::vector<int64_t> sizes = division.sizes;
  sizes[static_cast<size_t>(division.dim)] /= division.elements.ranks;
  return whole.contiguous()
      .view(grid_of(division))
      .select(1, division.elements.rank)
      .clone(at::MemoryFormat::Contiguous)
      .view(sizes);
}

at::Tensor whole_of(const strategy::Model& model, size_t parameter, const at::Tensor& part) {
  const auto& division = model.parameters[parameter].division;
  if (!division || !part.defined()) return part;
  const at::NoGradGuard no_grad;
  std::vector<int64_t> grid = grid_of(*division);
  const at::Tensor mine = part.detach().contiguous().view({grid[0], grid[2]});
  const at::Tensor all = at::empty({grid[1], grid[0], grid[2]}, mine.options());
  model.tensor_comm->run(tensors::all_gather_op(mine, all));
  return all.transpose(0, 1).contiguous().view(division->sizes);
}

double gradient_norm(strategy::Strategy& strategy, const strategy::GradientNorm& which) {
  const strategy::Model& model = strategy.model();
  if (model.tensor_comm == nullptr) return strategy.gradient_norm(which);
  // Ranks have other gradients of divided parameters, and one of them may throw alone.
  std::optional<Error> problem;
  double power = 0;
  try {
    power = which.power_of(strategy.gradient_norm(only(model, which, /*divided=*/true)));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    problem = error;
    power = std::numeric_limits<double>::infinity();
  }
  power =
      tensors::all_reduce_number(*model.tensor_comm, power, which.is_maximum() ? DB_MAX : DB_SUM);
  if (problem) throw Error(*problem);
  if (!std::isfinite(power)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("clip_grad_norm: the norm of the gradients is {}: another rank of the "
                            "tensor group has infinite or NaN elements in its parts of '{}'",
                            which.norm_of(power), model.name),
                {.hint = "see the error of that rank"});
  }
  const double rest = strategy.gradient_norm(only(model, which, /*divided=*/false));
  return which.norm_of(which.together(power, which.power_of(rest)));
}

}  // namespace coupler::tensor_parallel
