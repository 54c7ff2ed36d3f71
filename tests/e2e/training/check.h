// Shared by programs of checks (training_checks, sharding_checks): expectations that name rank and
// check, a small network with all awkward features, and its joined batch. Each process runs the
// checks in order on one thread, together with its peers.
#pragma once

#include <coupler/accelerator.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

// Throws with file and line if condition is false; text describes the failure.
void expect(bool condition, const std::string& text, const char* file, int line);
#define EXPECT(condition, text) expect(condition, text, __FILE__, __LINE__)

// All ranks hold the same values, element for element.
void expect_same_everywhere(coupler::Accelerator& accelerator, const torch::Tensor& tensor,
                            const std::string& what);

// The message of the Error that action throws; fails if it throws none.
std::string error_of(const std::function<void()>& action);

// In doubles, so that differences are only rounding; mixed: one parameter is float. With a tied
// weight and a frozen parameter.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(bool mixed = false);
  torch::Tensor forward(const torch::Tensor& tokens);
  torch::nn::Embedding embedding{nullptr};
  torch::nn::Linear hidden{nullptr};
  torch::Tensor tied, frozen, scale;  // scale is the float one
};
TORCH_MODULE(Net);
std::vector<torch::Tensor> trainable(Net& net);

// The batch of step `step` for `rows` rows: the same on every rank.
struct Batch {
  torch::Tensor tokens, targets;
};
Batch joined_batch(int step, int64_t rows);
// This rank's rows of the batch.
Batch own_part(const Batch& joined, int rank, int world_size);
torch::Tensor loss_of(Net& net, const Batch& batch);

struct Check {
  const char* name;
  std::function<void(coupler::Accelerator&)> run;
  bool alone = false;  // runs only if it is named: it needs options, or ends the job
};

// The program's arguments:
//   PROGRAM [--skip CHECK]… [--expect KIND] [CHECK, or a part of its name]
struct CheckOptions {
  std::string only;
  std::vector<std::string> skip;
  std::string expect;  // what the backend does with a model, or an error; read by checks
};
const CheckOptions& check_options();

// Defined by each program.
std::vector<Check> all_checks();

std::vector<Check> parity_checks();
std::vector<Check> accumulation_checks();
std::vector<Check> behavior_checks();
std::vector<Check> step_argument_checks();
std::vector<Check> comm_hook_checks();
std::vector<Check> communication_checks();
std::vector<Check> process_checks();
std::vector<Check> collectives_checks();
std::vector<Check> metrics_checks();
std::vector<Check> sync_batch_norm_checks();
std::vector<Check> loader_checks();
std::vector<Check> precision_checks();
std::vector<Check> scheduler_checks();
std::vector<Check> sample_checks();
std::vector<Check> activation_checkpoint_checks();
std::vector<Check> in_backward_checks();
std::vector<Check> big_model_checks();
std::vector<Check> adapter_checks();
std::vector<Check> checkpoint_checks();
std::vector<Check> weight_checks();
