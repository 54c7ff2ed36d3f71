// The options of Coupler's optimizers: their names in checkpoints, and what is wrong with them.
#include <coupler/optimizers.h>
#include <fmt/format.h>

#include <cmath>

namespace coupler {
namespace {

// Accepts finite values from least on.
std::string problem_of(const char* name, double value, double least = 0) {
  return std::isfinite(value) && value >= least
             ? ""
             : fmt::format("{} is {}, but must be at least {}", name, value, least);
}

std::string problem_of(const std::tuple<double, double>& betas) {
  for (const double beta : {std::get<0>(betas), std::get<1>(betas)}) {
    if (!(beta >= 0 && beta < 1))
      return fmt::format("betas has {}, but must be at least 0 and below 1", beta);
  }
  return "";
}

std::string first_of(std::initializer_list<std::string> problems) {
  for (const std::string& problem : problems)
    if (!problem.empty()) return problem;
  return "";
}

template <class Options>
std::string problem_of_adam(const Options& options) {
  return first_of({problem_of("lr", options.lr()), problem_of(options.betas()),
                   problem_of("eps", options.eps()),
                   problem_of("weight_decay", options.weight_decay())});
}

}  // namespace

ParameterOptions::Named NAdamOptions::named() {
  return {{"lr", &lr()},
          {"betas", &betas()},
          {"eps", &eps()},
          {"weight_decay", &weight_decay()},
          {"momentum_decay", &momentum_decay()},
          {"decoupled_weight_decay", &decoupled_weight_decay()}};
}
std::string NAdamOptions::problem() const {
  return first_of({problem_of_adam(*this), problem_of("momentum_decay", momentum_decay())});
}

ParameterOptions::Named RAdamOptions::named() {
  return {{"lr", &lr()},
          {"betas", &betas()},
          {"eps", &eps()},
          {"weight_decay", &weight_decay()},
          {"decoupled_weight_decay", &decoupled_weight_decay()}};
}
std::string RAdamOptions::problem() const { return problem_of_adam(*this); }

ParameterOptions::Named AdamaxOptions::named() {
  return {{"lr", &lr()}, {"betas", &betas()}, {"eps", &eps()}, {"weight_decay", &weight_decay()}};
}
std::string AdamaxOptions::problem() const { return problem_of_adam(*this); }

ParameterOptions::Named LionOptions::named() {
  return {{"lr", &lr()}, {"betas", &betas()}, {"weight_decay", &weight_decay()}};
}
std::string LionOptions::problem() const {
  return first_of(
      {problem_of("lr", lr()), problem_of(betas()), problem_of("weight_decay", weight_decay())});
}

ParameterOptions::Named ScheduleFreeAdamWOptions::named() {
  return {{"lr", &lr()},
          {"betas", &betas()},
          {"eps", &eps()},
          {"weight_decay", &weight_decay()},
          {"warmup_steps", &warmup_steps()},
          {"r", &r()},
          {"weight_lr_power", &weight_lr_power()},
          {"training", &training()},
          {"steps", &steps()},
          {"largest_lr", &largest_lr()},
          {"weight_sum", &weight_sum()},
          {"latest_weight", &latest_weight()}};
}
std::string ScheduleFreeAdamWOptions::problem() const {
  return first_of({problem_of_adam(*this),
                   problem_of("warmup_steps", static_cast<double>(warmup_steps())),
                   problem_of("beta1", std::get<0>(betas()), 1e-6)});
}

ParameterOptions::Named AdafactorOptions::named() {
  return {{"lr", &lr()}, {"beta2_decay", &beta2_decay()},  {"eps1", &eps1()}, {"eps2", &eps2()},
          {"d", &d()},   {"weight_decay", &weight_decay()}};
}
std::string AdafactorOptions::problem() const {
  return first_of({problem_of("lr", lr()), problem_of("-beta2_decay", -beta2_decay()),
                   problem_of("eps1", eps1()), problem_of("eps2", eps2()), problem_of("d", d(), 1),
                   problem_of("weight_decay", weight_decay())});
}

ParameterOptions::Named MuonOptions::named() {
  return {{"lr", &lr()},
          {"weight_decay", &weight_decay()},
          {"momentum", &momentum()},
          {"nesterov", &nesterov()},
          {"eps", &eps()},
          {"ns_steps", &ns_steps()},
          {"match_rms_adamw", &match_rms_adamw()}};
}
std::string MuonOptions::problem() const {
  return first_of({problem_of("lr", lr()), problem_of("weight_decay", weight_decay()),
                   problem_of("momentum", momentum()), problem_of("eps", eps()),
                   problem_of("ns_steps", static_cast<double>(ns_steps()))});
}

}  // namespace coupler
