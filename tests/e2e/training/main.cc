// A program of checks: every rank of a job checks what the Accelerator promises, with the job's
// backend. ctest starts it through `coupler launch` for each backend and world size. Prints a line
// for each check. Exits with 1, or the error's own code, if one fails on this rank, and with 1 if
// none ran.
#include <coupler/error.h>

#include <algorithm>
#include <cstdio>
#include <sstream>
#include <stdexcept>

#include "check.h"

void expect(bool condition, const std::string& text, const char* file, int line) {
  if (condition) return;
  throw std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": " + text);
}

void expect_same_everywhere(coupler::Accelerator& accelerator, const torch::Tensor& tensor,
                            const std::string& what) {
  const auto first = accelerator.broadcast(tensor, 0);
  EXPECT(torch::equal(first, tensor.detach()), what + " differs from rank 0's");
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const coupler::Error& error) {
    return error.what();
  }
  EXPECT(false, "no coupler::Error was thrown");
  return {};
}

NetImpl::NetImpl(bool mixed)
    : embedding(register_module("embedding", torch::nn::Embedding(11, 6))),
      hidden(register_module("hidden", torch::nn::Linear(6, 6))) {
  to(torch::kDouble);
  tied = register_parameter("tied", embedding->weight);
  frozen = register_parameter("frozen", torch::randn({6}, torch::kDouble), /*requires_grad=*/false);
  scale = register_parameter("scale", torch::ones({1}, mixed ? torch::kFloat : torch::kDouble));
}

torch::Tensor NetImpl::forward(const torch::Tensor& tokens) {
  const auto mixed = torch::tanh(hidden(embedding(tokens).sum(1))) * scale.to(torch::kDouble);
  return torch::linear(mixed + frozen, tied);
}

std::vector<torch::Tensor> trainable(Net& net) {
  return {net->embedding->weight, net->hidden->weight, net->hidden->bias, net->scale};
}

Batch joined_batch(int step, int64_t rows) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(1000 + step));
  return {torch::randint(0, 11, {rows, 3}, generator, torch::kLong),
          torch::randint(0, 11, {rows}, generator, torch::kLong)};
}

Batch own_part(const Batch& joined, int rank, int world_size) {
  const int64_t rows = joined.tokens.size(0) / world_size;
  return {joined.tokens.narrow(0, rank * rows, rows), joined.targets.narrow(0, rank * rows, rows)};
}

torch::Tensor loss_of(Net& net, const Batch& batch) {
  return torch::cross_entropy_loss(net->forward(batch.tokens), batch.targets);
}

namespace {

CheckOptions given;

bool is_chosen(const Check& check) {
  const std::string name = check.name;
  if (check.alone) return name == given.only;
  return name.find(given.only) != std::string::npos &&
         std::find(given.skip.begin(), given.skip.end(), name) == given.skip.end();
}

// A misspelled name would silently skip or run nothing.
void require_names(const std::vector<Check>& checks) {
  std::vector<std::string> names = given.skip;
  if (names.empty() && std::none_of(checks.begin(), checks.end(), is_chosen)) {
    names.push_back(given.only);
  }
  for (const std::string& name : names) {
    const bool known = std::any_of(checks.begin(), checks.end(),
                                   [&](const Check& check) { return name == check.name; });
    EXPECT(known, "there is no check '" + name + "'");
  }
}

}  // namespace

const CheckOptions& check_options() { return given; }

int main(int argc, char** argv) {
  coupler::Accelerator accelerator(argc, argv);
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool option = word == "--skip" || word == "--expect";
    const std::string value = option && i + 1 < argc ? argv[++i] : word;
    if (word == "--skip") {
      given.skip.push_back(value);
    } else {
      (word == "--expect" ? given.expect : given.only) = value;
    }
  }
  const std::vector<Check> checks = all_checks();
  require_names(checks);
  for (const Check& check : checks) {
    if (!is_chosen(check)) continue;
    try {
      check.run(accelerator);
      accelerator.print("ok ", check.name);
    } catch (const std::exception& error) {  // the ranks are no longer in sync
      std::fprintf(stderr, "rank %d: %s FAILED: %s\n", accelerator.rank(), check.name,
                   error.what());
      const auto* known = dynamic_cast<const coupler::Error*>(&error);
      return known != nullptr ? known->exit_code() : 1;
    }
  }
  return 0;
}
