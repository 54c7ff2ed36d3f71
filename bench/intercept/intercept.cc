// The overhead of the intercept when all parameters are resident: forward and backward of a Linear
// with managed parameters against one with plain parameters, in turns in one process. Prints
// "SIZE PLAIN MANAGED" (microseconds) per size and round.
//   bench intercept --rounds N
#include "residency/intercept.h"

#include <ATen/Functions.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "program.h"
#include "residency/residency.h"

namespace coupler::bench::intercept {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kBatch = 64;

// Provides copies of the values; filled once, because the unit stays resident.
class Copy : public coupler::residency::Source {
 public:
  explicit Copy(std::vector<at::Tensor> values) : values_(std::move(values)) {}
  void fill(size_t, void* memory) override {
    auto* place = static_cast<char*>(memory);
    for (const at::Tensor& value : values_) {
      std::memcpy(place, value.const_data_ptr(), value.nbytes());
      place += value.nbytes();
    }
  }
  void store(size_t, const void*) override {}

 private:
  std::vector<at::Tensor> values_;
};

std::unique_ptr<coupler::residency::Residency> manage(torch::nn::Module& module,
                                                      coupler::residency::BufferPool& pool) {
  std::vector<at::Tensor> values;
  for (const at::Tensor& parameter : module.parameters())
    values.push_back(parameter.detach().clone());
  auto residency = std::make_unique<coupler::residency::Residency>(
      std::make_unique<Copy>(values), pool, coupler::residency::ResidencyOptions{});
  auto unit = std::make_unique<coupler::residency::Unit>();
  for (at::Tensor& parameter : module.parameters()) {
    auto managed = std::make_unique<coupler::residency::ManagedStorage>();
    managed->offset = unit->bytes;
    unit->bytes += parameter.nbytes();
    parameter.set_data(coupler::residency::make_managed(*managed, parameter.sizes(), at::kFloat));
    coupler::residency::put_intercept(parameter);
    unit->storages.push_back(std::move(managed));
  }
  residency->add(std::move(unit));
  return residency;
}

double microseconds(torch::nn::Linear& linear, const at::Tensor& input, int repetitions) {
  const auto start = Clock::now();
  for (int i = 0; i < repetitions; ++i) {
    linear->forward(input).sum().backward();
    linear->zero_grad();
  }
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / repetitions;
}

}  // namespace

int program(int argc, char** argv) {
  const int rounds = argc == 3 && std::strcmp(argv[1], "--rounds") == 0 ? std::atoi(argv[2]) : 0;
  if (rounds <= 0) {
    std::fputs("usage: bench intercept --rounds N\n", stderr);
    return 2;
  }
  at::set_num_threads(1);
  coupler::residency::check_intercept();
  for (const int64_t size : {128, 512, 1024}) {
    torch::nn::Linear plain(size, size), managed(size, size);
    coupler::residency::BufferPool pool;
    const auto residency = manage(*managed, pool);
    const at::Tensor input = at::randn({kBatch, size}).requires_grad_(true);
    const int repetitions = static_cast<int>(60'000'000 / (size * size * kBatch / 64 + 20'000));
    microseconds(plain, input, repetitions / 4);
    microseconds(managed, input, repetitions / 4);
    for (int round = 0; round < rounds; ++round) {
      const bool first = round % 2 == 0;
      const double a = microseconds(first ? plain : managed, input, repetitions);
      const double b = microseconds(first ? managed : plain, input, repetitions);
      std::printf("%d %.4f %.4f\n", static_cast<int>(size), first ? a : b, first ? b : a);
    }
  }
  return 0;
}

const Registration kRegistration("intercept", program);

}  // namespace coupler::bench::intercept
