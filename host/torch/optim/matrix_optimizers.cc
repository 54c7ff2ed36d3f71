// Adafactor and Muon, which need whole matrices.
#include <ATen/Functions.h>
#include <coupler/error.h>
#include <coupler/optimizers.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace coupler {
namespace {

using Piece = ParameterOptimizer::Piece;

double root_mean_square(const at::Tensor& values) {
  return values.norm(2).item<double>() / std::sqrt(static_cast<double>(values.numel()));
}

double smallest_difference(at::ScalarType type) {
  if (type == at::kDouble) return std::numeric_limits<double>::epsilon();
  if (type == at::kFloat) return std::numeric_limits<float>::epsilon();
  return type == at::kHalf ? 0x1p-10 : 0x1p-7;
}

}  // namespace

// Of a matrix, the means of squares of its rows and of its columns; of a vector, all squares.
std::vector<std::string> Adafactor::state_names() const {
  return {"row_var", "col_var", "variance"};
}

std::vector<int64_t> Adafactor::state_shape(const std::string& name,
                                            const at::Tensor& parameter) const {
  std::vector<int64_t> shape = parameter.sizes().vec();
  const bool is_vector = shape.size() < 2;
  if (is_vector != (name == "variance")) return {0};
  if (name == "row_var") shape[shape.size() - 1] = 1;
  if (name == "col_var") shape[shape.size() - 2] = 1;
  return shape;
}

void Adafactor::update(const Piece& piece, ParameterOptions& base) const {
  const auto& options = static_cast<const AdafactorOptions&>(base);
  const at::Tensor &parameter = piece.parameter, &gradient = piece.gradient;
  const double eps1 =
      options.eps1() != 0 ? options.eps1() : smallest_difference(parameter.scalar_type());
  const auto step = static_cast<double>(piece.step);
  const double keep = std::pow(step, options.beta2_decay());
  const double rate = std::max(options.eps2(), root_mean_square(parameter)) *
                      std::min(options.lr(), 1 / std::sqrt(step));
  if (options.weight_decay() != 0) parameter.mul_(1 - options.lr() * options.weight_decay());

  at::Tensor variance;
  if (gradient.dim() > 1) {
    const at::Tensor &rows = piece.state[0], &columns = piece.state[1];
    const auto mean_of_squares = [&](int64_t dim) {
      return gradient.norm(2, dim, /*keepdim=*/true).square_().div_(gradient.size(dim));
    };
    rows.lerp_(mean_of_squares(-1), keep);
    columns.lerp_(mean_of_squares(-2), keep);
    variance = rows.matmul(columns).div_(rows.mean(-2, /*keepdim=*/true).clamp_min_(eps1));
  } else {
    variance = piece.state[2].lerp_(gradient.square(), keep).clone();
  }
  const at::Tensor change = variance.clamp_min_(eps1 * eps1).rsqrt_().mul_(gradient);
  parameter.add_(change, -rate / std::max(1.0, root_mean_square(change) / options.d()));
}

std::vector<std::string> Muon::state_names() const { return {"momentum_buffer"}; }

namespace {

// The nearest matrix with orthogonal rows or columns, roughly: five steps of a Newton-Schulz
// iteration whose coefficients maximize its slope at 0.
at::Tensor orthogonalized(const at::Tensor& matrix, const MuonOptions& options) {
  constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
  const bool is_tall = matrix.size(0) > matrix.size(1);
  at::Tensor x = matrix.to(at::kBFloat16);
  if (is_tall) x = x.t();
  x = x.div(x.norm().clamp_min(options.eps()));
  for (int64_t i = 0; i < options.ns_steps(); ++i) {
    const at::Tensor gram = x.mm(x.t());
    x = at::addmm(x, at::addmm(gram, gram, gram, kB, kC), x, kA);
  }
  return is_tall ? x.t() : x;
}

}  // namespace

void Muon::update(const Piece& piece, ParameterOptions& base) const {
  const auto& options = static_cast<const MuonOptions&>(base);
  const at::Tensor& parameter = piece.parameter;
  if (parameter.dim() != 2)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("Muon: a parameter of shape [{}] is not a matrix",
                            fmt::join(parameter.sizes(), ", ")),
                {.subject = "Muon", .hint = "give it to another optimizer, such as AdamW"});
  const at::Tensor& momentum = piece.state[0];
  momentum.lerp_(piece.gradient, 1 - options.momentum());
  const at::Tensor direction =
      options.nesterov() ? piece.gradient.lerp(momentum, options.momentum()) : momentum;
  const auto rows = static_cast<double>(parameter.size(0));
  const auto columns = static_cast<double>(parameter.size(1));
  const double ratio = options.match_rms_adamw() ? 0.2 * std::sqrt(std::max(rows, columns))
                                                 : std::sqrt(std::max(1.0, rows / columns));
  parameter.mul_(1 - options.lr() * options.weight_decay());
  parameter.add_(orthogonalized(direction, options), -options.lr() * ratio);
}

}  // namespace coupler
