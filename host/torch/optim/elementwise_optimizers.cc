// NAdam, RAdam, Adamax, Lion and schedule-free AdamW, in operations of LibTorch: on pieces that fit
// the cache, since the kernel cuts flat memory into such.
#include <ATen/Functions.h>
#include <coupler/error.h>
#include <coupler/optimizers.h>

#include <cmath>

namespace coupler {
namespace {

using Piece = ParameterOptimizer::Piece;

template <class Options>
Options& options_as(ParameterOptions& options) {
  return static_cast<Options&>(options);
}

// The gradient with weight decay: decoupled decay shrinks the parameter, the other is added.
template <class Options>
at::Tensor decayed(const Piece& piece, const Options& options, bool decoupled) {
  const double decay = options.weight_decay();
  if (decay == 0) return piece.gradient;
  if (!decoupled) return piece.gradient.add(piece.parameter, decay);
  piece.parameter.mul_(1 - options.lr() * decay);
  return piece.gradient;
}

void update_averages(const Piece& piece, const at::Tensor& gradient, double beta1, double beta2) {
  piece.state[0].lerp_(gradient, 1 - beta1);
  piece.state[1].mul_(beta2).addcmul_(gradient, gradient, 1 - beta2);
}

double nadam_momentum(const NAdamOptions& options, double beta1, int64_t step) {
  return beta1 * (1 - 0.5 * std::pow(0.96, static_cast<double>(step) * options.momentum_decay()));
}

// The product of the momenta of all steps, which is 0 after some thousands.
double nadam_product(const NAdamOptions& options, double beta1, int64_t steps) {
  double product = 1;
  for (int64_t i = 1; i <= steps && product > 1e-30; ++i)
    product *= nadam_momentum(options, beta1, i);
  return product;
}

}  // namespace

std::vector<std::string> NAdam::state_names() const { return {"exp_avg", "exp_avg_sq"}; }

void NAdam::update(const Piece& piece, ParameterOptions& base) const {
  const auto& options = options_as<NAdamOptions>(base);
  const auto [beta1, beta2] = options.betas();
  const at::Tensor gradient = decayed(piece, options, options.decoupled_weight_decay());
  update_averages(piece, gradient, beta1, beta2);
  const double mu = nadam_momentum(options, beta1, piece.step);
  const double next_mu = nadam_momentum(options, beta1, piece.step + 1);
  const double product = nadam_product(options, beta1, piece.step);
  const double correction = 1 - std::pow(beta2, static_cast<double>(piece.step));
  const at::Tensor scale = piece.state[1].div(correction).sqrt_().add_(options.eps());
  piece.parameter.addcdiv_(gradient, scale, -options.lr() * (1 - mu) / (1 - product));
  piece.parameter.addcdiv_(piece.state[0], scale,
                           -options.lr() * next_mu / (1 - product * next_mu));
}

std::vector<std::string> RAdam::state_names() const { return {"exp_avg", "exp_avg_sq"}; }

void RAdam::update(const Piece& piece, ParameterOptions& base) const {
  const auto& options = options_as<RAdamOptions>(base);
  const auto [beta1, beta2] = options.betas();
  update_averages(piece, decayed(piece, options, options.decoupled_weight_decay()), beta1, beta2);
  const auto step = static_cast<double>(piece.step);
  const double correction1 = 1 - std::pow(beta1, step), correction2 = 1 - std::pow(beta2, step);
  // The length of the moving average, and of one of infinitely many steps.
  const double longest = 2 / (1 - beta2) - 1;
  const double length = longest - 2 * step * (1 - correction2) / correction2;
  const double rate = options.lr() / correction1;
  if (length <= 5) {
    piece.parameter.add_(piece.state[0], -rate);
    return;
  }
  const double rectified =
      std::sqrt((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length));
  piece.parameter.addcdiv_(piece.state[0], piece.state[1].sqrt().add_(options.eps()),
                           -rate * rectified * std::sqrt(correction2));
}

std::vector<std::string> Adamax::state_names() const { return {"exp_avg", "exp_inf"}; }

void Adamax::update(const Piece& piece, ParameterOptions& base) const {
  const auto& options = options_as<AdamaxOptions>(base);
  const auto [beta1, beta2] = options.betas();
  const at::Tensor gradient = decayed(piece, options, false);
  piece.state[0].lerp_(gradient, 1 - beta1);
  at::Tensor largest = piece.state[1];
  at::maximum_out(largest, largest.mul_(beta2), gradient.abs().add_(options.eps()));
  const double correction = 1 - std::pow(beta1, static_cast<double>(piece.step));
  piece.parameter.addcdiv_(piece.state[0], largest, -options.lr() / correction);
}

std::vector<std::string> Lion::state_names() const { return {"exp_avg"}; }

void Lion::update(const Piece& piece, ParameterOptions& base) const {
  const auto& options = options_as<LionOptions>(base);
  const auto [beta1, beta2] = options.betas();
  decayed(piece, options, true);
  piece.parameter.add_(piece.state[0].lerp(piece.gradient, 1 - beta1).sign_(), -options.lr());
  piece.state[0].lerp_(piece.gradient, 1 - beta2);
}

// z is the sequence that gradient descent moves; parameters are y in training and the average x
// in evaluation.
std::vector<std::string> ScheduleFreeAdamW::state_names() const { return {"z", "exp_avg_sq"}; }

namespace {

// Brings the weights of the average to this step, once for all pieces of a group.
void advance(ScheduleFreeAdamWOptions& options, int64_t step) {
  while (options.steps() < step) {
    const auto k = static_cast<double>(++options.steps());
    const auto warmup = static_cast<double>(options.warmup_steps());
    options.largest_lr(
        std::max(options.lr() * (k <= warmup ? k / warmup : 1), options.largest_lr()));
    const double weight =
        std::pow(k, options.r()) * std::pow(options.largest_lr(), options.weight_lr_power());
    options.weight_sum(options.weight_sum() + weight);
    options.latest_weight(options.weight_sum() == 0 ? 0 : weight / options.weight_sum());
  }
}

}  // namespace

void ScheduleFreeAdamW::update(const Piece& piece, ParameterOptions& base) const {
  auto& options = options_as<ScheduleFreeAdamWOptions>(base);
  if (!options.training())
    throw Error(ErrorCode::kUsage, "ScheduleFreeAdamW: step() after eval()",
                {.subject = "ScheduleFreeAdamW", .hint = "call train() before training goes on"});
  advance(options, piece.step);
  const auto [beta1, beta2] = options.betas();
  const auto k = static_cast<double>(options.steps());
  const auto warmup = static_cast<double>(options.warmup_steps());
  const double rate = options.lr() * (k <= warmup ? k / warmup : 1);
  const double weight = options.latest_weight();
  const at::Tensor &y = piece.parameter, &z = piece.state[0];
  if (piece.step == 1) z.copy_(y);
  piece.state[1].mul_(beta2).addcmul_(piece.gradient, piece.gradient, 1 - beta2);
  const at::Tensor scale = piece.state[1].div(1 - std::pow(beta2, k)).sqrt_().add_(options.eps());
  at::Tensor direction = piece.gradient.div(scale);
  if (options.weight_decay() != 0) direction.add_(y, options.weight_decay());
  y.lerp_(z, weight).add_(direction, rate * (beta1 * (1 - weight) - 1));
  z.sub_(direction, rate);
}

void ScheduleFreeAdamW::switch_mode(const std::vector<Piece>& pieces, ParameterOptions& base,
                                    bool training) const {
  auto& options = options_as<ScheduleFreeAdamWOptions>(base);
  if (options.training() == training) return;
  options.training(training);
  const double beta1 = std::get<0>(options.betas());
  for (const Piece& piece : pieces) {
    if (piece.step > 0) piece.parameter.lerp_(piece.state[0], training ? 1 - beta1 : 1 - 1 / beta1);
  }
}

}  // namespace coupler
