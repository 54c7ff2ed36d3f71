// Optimizers that LibTorch does not have in C++: NAdam, RAdam, Adamax, Lion, schedule-free AdamW,
// Adafactor and Muon. They are torch::optim optimizers: prepared and scheduled like AdamW, or used
// without an Accelerator. Used by the training thread.
//
//   coupler::NAdam optimizer(model->parameters(), coupler::NAdamOptions(2e-3).weight_decay(0.01));
//   auto [net, opt, batches] = accelerator.prepare(model, optimizer, loader);
//
// All but Adafactor and Muon work element by element: they run over the model's flat memory, also
// if the model is sharded or their state offloaded. Those two need whole matrices, so prepare
// refuses them for a sharded model.
//
// Formulas and defaults are those of PyTorch 2.11 (torch/optim/nadam.py, radam.py, adamax.py,
// _adafactor.py, _muon.py) and of schedulefree 1.4.1 (adamw_schedulefree.py); Lion's are
// algorithm 2 of Chen et al., "Symbolic Discovery of Optimization Algorithms" (2023).
#pragma once

#include <torch/arg.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

namespace coupler {

// Options: those of one parameter group. Every option has a name, by which checkpoints keep it.
class ParameterOptions : public torch::optim::OptimizerOptions {
 public:
  // Options by name, and where their values are.
  using Value = std::variant<double*, int64_t*, bool*, std::tuple<double, double>*>;
  using Named = std::vector<std::pair<const char*, Value>>;
  virtual Named named() = 0;  // pointers into this object
  // What is wrong with the values: "betas must be from 0 to 1, without 1"; "" if nothing is.
  virtual std::string problem() const = 0;
  virtual std::unique_ptr<ParameterOptions> initial() const = 0;  // as the constructor makes them
};

// ParameterOptimizer: an optimizer that updates each parameter from its own gradient and state.
// Derive from it for one of your own.
class ParameterOptimizer : public torch::optim::Optimizer {
 public:
  // A parameter; if the optimizer is elementwise, any piece of parameters, flat or not.
  struct Piece {
    at::Tensor parameter;           // changed in place
    at::Tensor gradient;            // of the same shape; must not be changed
    std::vector<at::Tensor> state;  // in the order of state_names()
    int64_t step = 0;               // number of this update, from 1; before the first: 0
  };

  // Whether update() treats each element alone.
  virtual bool is_elementwise() const { return true; }
  // Such as "exp_avg". State starts as zeros.
  virtual std::vector<std::string> state_names() const = 0;
  // The parameter's own shape by default, as an elementwise optimizer's state must have; {0} if
  // this parameter has no such state.
  virtual std::vector<int64_t> state_shape(const std::string& name,
                                           const at::Tensor& parameter) const;
  // Changes the parameter and its state by one step.
  virtual void update(const Piece& piece, ParameterOptions& options) const = 0;
  // Moves the parameters of a group between the values that training computes gradients at and
  // those to evaluate and save, for an optimizer for which they differ. Does nothing by default.
  virtual void switch_mode(const std::vector<Piece>& pieces, ParameterOptions& options,
                           bool training) const;

  // Updates each parameter that has a gradient. closure: evaluated first, with autograd.
  at::Tensor step(LossClosure closure = nullptr) override;
  // As torch::optim's: options that have their initial values become the optimizer's own, and all
  // do if the group has none. Throws Error(kInvalidArgument) naming a wrong one.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);
  // switch_mode for every group. Once prepared, call those of coupler::Optimizer instead.
  void train() { set_mode(true); }
  void eval() { set_mode(false); }

 protected:
  // Adds the groups. Throws Error(kInvalidArgument) naming a wrong option.
  ParameterOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                     std::unique_ptr<ParameterOptions> defaults);

 private:
  void set_mode(bool training);
};

// The options of a kind of optimizer: TORCH_ARG declares a setter that can be chained,
// .weight_decay(0.01), and a getter.
template <class Derived>
class ParameterOptionsOf : public ParameterOptions {
 public:
  // A copy, for a group.
  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override {
    return std::make_unique<Derived>(static_cast<const Derived&>(*this));
  }
  // As the constructor makes them.
  std::unique_ptr<ParameterOptions> initial() const override { return std::make_unique<Derived>(); }
  // The learning rate.
  double get_lr() const override { return static_cast<const Derived&>(*this).lr(); }
  // The same, for schedulers.
  void set_lr(double rate) override { static_cast<Derived&>(*this).lr(rate); }
};

// Names, defaults and meanings are those of PyTorch's torch.optim.NAdam.
class NAdamOptions : public ParameterOptionsOf<NAdamOptions> {
 public:
  // rate: the learning rate, lr.
  NAdamOptions(double rate = 2e-3) : lr_(rate) {}  // NOLINT(google-explicit-constructor)
  using betas_t = std::tuple<double, double>;
  TORCH_ARG(double, lr);
  TORCH_ARG(betas_t, betas) = {0.9, 0.999};
  TORCH_ARG(double, eps) = 1e-8;
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(double, momentum_decay) = 4e-3;
  TORCH_ARG(bool, decoupled_weight_decay) = false;
  Named named() override;
  std::string problem() const override;
};

// Names, defaults and meanings are those of PyTorch's torch.optim.RAdam.
class RAdamOptions : public ParameterOptionsOf<RAdamOptions> {
 public:
  // rate: the learning rate, lr.
  RAdamOptions(double rate = 1e-3) : lr_(rate) {}  // NOLINT(google-explicit-constructor)
  using betas_t = std::tuple<double, double>;
  TORCH_ARG(double, lr);
  TORCH_ARG(betas_t, betas) = {0.9, 0.999};
  TORCH_ARG(double, eps) = 1e-8;
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(bool, decoupled_weight_decay) = false;
  Named named() override;
  std::string problem() const override;
};

// Names, defaults and meanings are those of PyTorch's torch.optim.Adamax.
class AdamaxOptions : public ParameterOptionsOf<AdamaxOptions> {
 public:
  // rate: the learning rate, lr.
  AdamaxOptions(double rate = 2e-3) : lr_(rate) {}  // NOLINT(google-explicit-constructor)
  using betas_t = std::tuple<double, double>;
  TORCH_ARG(double, lr);
  TORCH_ARG(betas_t, betas) = {0.9, 0.999};
  TORCH_ARG(double, eps) = 1e-8;
  TORCH_ARG(double, weight_decay) = 0;
  Named named() override;
  std::string problem() const override;
};

// As in Symbolic Discovery of Optimization Algorithms (Chen et al., 2023), by the authors' names.
class LionOptions : public ParameterOptionsOf<LionOptions> {
 public:
  // rate: the learning rate, lr.
  LionOptions(double rate = 1e-4) : lr_(rate) {}  // NOLINT(google-explicit-constructor)
  using betas_t = std::tuple<double, double>;
  TORCH_ARG(double, lr);
  TORCH_ARG(betas_t, betas) = {0.9, 0.99};
  TORCH_ARG(double, weight_decay) = 0;  // decoupled
  Named named() override;
  std::string problem() const override;
};

// Needs no learning-rate schedule. The average that is to be evaluated and saved differs from the
// values that gradients are computed at: call eval() before evaluation and save_model, and train()
// before training goes on. Checkpoints keep the mode.
class ScheduleFreeAdamWOptions : public ParameterOptionsOf<ScheduleFreeAdamWOptions> {
 public:
  // rate: the learning rate, lr.
  // NOLINTNEXTLINE(google-explicit-constructor)
  ScheduleFreeAdamWOptions(double rate = 2.5e-3) : lr_(rate) {}
  using betas_t = std::tuple<double, double>;
  TORCH_ARG(double, lr);
  TORCH_ARG(betas_t, betas) = {0.9, 0.999};
  TORCH_ARG(double, eps) = 1e-8;
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(int64_t, warmup_steps) = 0;  // during which the rate rises linearly
  TORCH_ARG(double, r) = 0;              // power of the step in its weight in the average
  TORCH_ARG(double, weight_lr_power) = 2;
  // Kept by the optimizer: the mode, and the average's weights after `steps` steps.
  TORCH_ARG(bool, training) = true;
  TORCH_ARG(int64_t, steps) = 0;
  TORCH_ARG(double, largest_lr) = -1;
  TORCH_ARG(double, weight_sum) = 0;
  TORCH_ARG(double, latest_weight) = 0;  // of the latest step, relative to the sum
  Named named() override;
  std::string problem() const override;
};

// Names, defaults and meanings are those of PyTorch's torch.optim.Adafactor.
class AdafactorOptions : public ParameterOptionsOf<AdafactorOptions> {
 public:
  // rate: the learning rate, lr.
  AdafactorOptions(double rate = 1e-2) : lr_(rate) {}  // NOLINT(google-explicit-constructor)
  TORCH_ARG(double, lr);
  TORCH_ARG(double, beta2_decay) = -0.8;
  TORCH_ARG(double, eps1) = 0;  // 0: the smallest difference of the parameter's dtype
  TORCH_ARG(double, eps2) = 1e-3;
  TORCH_ARG(double, d) = 1;             // clipping threshold of an update's root mean square
  TORCH_ARG(double, weight_decay) = 0;  // decoupled
  Named named() override;
  std::string problem() const override;
};

// For matrices only; give other parameters to another optimizer.
class MuonOptions : public ParameterOptionsOf<MuonOptions> {
 public:
  // rate: the learning rate, lr.
  MuonOptions(double rate = 1e-3) : lr_(rate) {}  // NOLINT(google-explicit-constructor)
  TORCH_ARG(double, lr);
  TORCH_ARG(double, weight_decay) = 0.1;  // decoupled
  TORCH_ARG(double, momentum) = 0.95;
  TORCH_ARG(bool, nesterov) = true;
  TORCH_ARG(double, eps) = 1e-7;
  TORCH_ARG(int64_t, ns_steps) = 5;  // of the Newton-Schulz iteration, in bf16
  // Whether the rate is scaled by 0.2 sqrt(max(rows, columns)), so that an update is as large as
  // AdamW's; otherwise by sqrt(max(1, rows / columns)). torch's adjust_lr_fn.
  TORCH_ARG(bool, match_rms_adamw) = false;
  Named named() override;
  std::string problem() const override;
};

// Constructs an optimizer with options of that type.
template <class Options>
class ParameterOptimizerOf : public ParameterOptimizer {
 public:
  // Of one group. Throws Error(kInvalidArgument) naming a wrong option.
  explicit ParameterOptimizerOf(std::vector<at::Tensor> parameters, Options options = {})
      : ParameterOptimizerOf({torch::optim::OptimizerParamGroup(std::move(parameters))},
                             std::move(options)) {}
  // The same of several groups. defaults: of groups without options.
  explicit ParameterOptimizerOf(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                                Options defaults = {})
      : ParameterOptimizer(groups, std::make_unique<Options>(std::move(defaults))) {}
};

// Adam with Nesterov momentum.
class NAdam final : public ParameterOptimizerOf<NAdamOptions> {
 public:
  using ParameterOptimizerOf::ParameterOptimizerOf;  // of parameters, or of groups
  std::vector<std::string> state_names() const override;
  void update(const Piece& piece, ParameterOptions& options) const override;
};
// Rectified Adam.
class RAdam final : public ParameterOptimizerOf<RAdamOptions> {
 public:
  using ParameterOptimizerOf::ParameterOptimizerOf;  // of parameters, or of groups
  std::vector<std::string> state_names() const override;
  void update(const Piece& piece, ParameterOptions& options) const override;
};
// Adam with the infinity norm.
class Adamax final : public ParameterOptimizerOf<AdamaxOptions> {
 public:
  using ParameterOptimizerOf::ParameterOptimizerOf;  // of parameters, or of groups
  std::vector<std::string> state_names() const override;
  void update(const Piece& piece, ParameterOptions& options) const override;
};
// The sign of an interpolated momentum.
class Lion final : public ParameterOptimizerOf<LionOptions> {
 public:
  using ParameterOptimizerOf::ParameterOptimizerOf;  // of parameters, or of groups
  std::vector<std::string> state_names() const override;
  void update(const Piece& piece, ParameterOptions& options) const override;
};
// AdamW without a schedule (Defazio et al., 2024); see its options.
class ScheduleFreeAdamW final : public ParameterOptimizerOf<ScheduleFreeAdamWOptions> {
 public:
  using ParameterOptimizerOf::ParameterOptimizerOf;  // of parameters, or of groups
  std::vector<std::string> state_names() const override;
  void update(const Piece& piece, ParameterOptions& options) const override;
  void switch_mode(const std::vector<Piece>& pieces, ParameterOptions& options,
                   bool training) const override;
};
// Second moments of matrices as rows and columns.
class Adafactor final : public ParameterOptimizerOf<AdafactorOptions> {
 public:
  using ParameterOptimizerOf::ParameterOptimizerOf;  // of parameters, or of groups
  std::vector<std::string> state_names() const override;
  void update(const Piece& piece, ParameterOptions& options) const override;
  bool is_elementwise() const override { return false; }
  std::vector<int64_t> state_shape(const std::string& name,
                                   const at::Tensor& parameter) const override;
};
// Orthogonalized momentum; for matrices.
class Muon final : public ParameterOptimizerOf<MuonOptions> {
 public:
  using ParameterOptimizerOf::ParameterOptimizerOf;  // of parameters, or of groups
  std::vector<std::string> state_names() const override;
  void update(const Piece& piece, ParameterOptions& options) const override;
  bool is_elementwise() const override { return false; }
};

}  // namespace coupler
