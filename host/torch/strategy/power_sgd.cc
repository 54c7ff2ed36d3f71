#include "strategy/power_sgd.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "tensors/tensor_ops.h"

namespace coupler::strategy {
namespace {

// Like torch's min_compression_rate: below it the two products cost more than they save.
constexpr int64_t kMinRate = 2;

int64_t rows_of(at::IntArrayRef sizes) { return sizes[0]; }
int64_t columns_of(at::IntArrayRef sizes) { return c10::multiply_integers(sizes.slice(1)); }

// Orthonormal columns that span at least the matrix's columns. Not finite if the matrix is not.
at::Tensor orthogonal_columns(const at::Tensor& matrix) {
  if (matrix.size(1) == 1) {
    // The tiny addend keeps a column of zeros zero.
    return matrix / (at::linalg_vector_norm(matrix) + 1e-30);
  }
  return std::get<0>(at::linalg_qr(matrix));
}

}  // namespace

PowerSgd::PowerSgd(const config::CommunicationConfig& config, const FlatParameters& flat, bool says)
    : rank_(config.powersgd_rank),
      start_(config.powersgd_start_step),
      warm_(config.powersgd_warm_start),
      steps_(at::full({1}, -1, at::kLong)) {
  std::vector<std::string> too_small;
  for (const FlatSlot& slot : flat.slots()) {
    const at::IntArrayRef sizes = slot.parameter.sizes();
    const bool narrow =
        slot.parameter.scalar_type() == at::kFloat && slot.numel > 0 && compresses(sizes);
    factors_.push_back(narrow ? at::zeros({columns_of(sizes), rank_}, slot.parameter.options())
                              : at::Tensor());
    if (!narrow && sizes.size() > 1 && rank_ > std::min(rows_of(sizes), columns_of(sizes))) {
      too_small.push_back(fmt::format("'{}' [{}]", slot.name, fmt::join(sizes, ", ")));
    }
  }
  if (says && !too_small.empty()) {
    log(LogLevel::kWarning, "strategy",
        fmt::format("communication.powersgd_rank is {}, which exceeds the smaller dimension of {}: "
                    "reduced uncompressed",
                    rank_, fmt::join(too_small, ", ")));
  }
  const bool none = std::none_of(factors_.begin(), factors_.end(),
                                 [](const at::Tensor& factor) { return factor.defined(); });
  if (says && none) {
    log(LogLevel::kWarning, "strategy",
        fmt::format(
            "communication.gradients is powersgd, but rank {} does not halve the size of any "
            "gradient of the model: all are reduced uncompressed; set a lower "
            "communication.powersgd_rank",
            rank_));
  }
}

bool PowerSgd::compresses(at::IntArrayRef sizes) const {
  if (sizes.size() < 2) return false;
  const int64_t rows = rows_of(sizes), columns = columns_of(sizes);
  return (rows + columns) * rank_ * kMinRate < rows * columns;
}

at::Tensor PowerSgd::first_factor(size_t slot) {
  at::Tensor& factor = factors_[slot];
  if (!warm_ || !factor.any().item<bool>()) {
    // Seeded by step and slot only, so every rank draws the same numbers, on any device.
    constexpr uint64_t kApart = 0x9E3779B97F4A7C15;
    const auto step = static_cast<uint64_t>(*steps_.const_data_ptr<int64_t>());
    auto generator = at::detail::createCPUGenerator((step + 1) * kApart + slot);
    factor.copy_(at::randn(factor.sizes(), generator, at::kFloat));
  }
  return orthogonal_columns(factor);
}

PowerSgdReduction::PowerSgdReduction(PowerSgd& state, const std::vector<FlatSlot>& slots,
                                     size_t first_slot, size_t end_slot, int64_t begin,
                                     at::Tensor memory, at::Tensor error)
    : state_(state), memory_(std::move(memory)) {
  int64_t whole_from = 0, p_elements = 0, q_elements = 0, whole_elements = 0;
  const auto leave_whole = [&](int64_t end) {
    if (end > whole_from) whole_.push_back(memory_.narrow(0, whole_from, end - whole_from));
    whole_elements += std::max<int64_t>(end - whole_from, 0);
  };
  for (size_t i = first_slot; i < end_slot; ++i) {
    const FlatSlot& slot = slots[i];
    if (!state_.factors()[i].defined()) continue;
    const int64_t at = slot.offset - begin, rows = rows_of(slot.parameter.sizes());
    leave_whole(at);
    whole_from = at + slot.numel;
    const auto matrix = [&](const at::Tensor& flat) {
      return flat.narrow(0, at, slot.numel).view({rows, slot.numel / rows});
    };
    matrices_.push_back({.slot = i, .values = matrix(memory_), .error = matrix(error)});
    p_elements += rows * state_.rank();
    q_elements += slot.numel / rows * state_.rank();
  }
  if (matrices_.empty()) return;
  leave_whole(memory_.numel());
  first_ = at::zeros({p_elements + whole_elements}, memory_.options());
  second_ = at::zeros({q_elements}, memory_.options());
  int64_t p = 0, q = 0;
  for (Matrix& matrix : matrices_) {
    const int64_t rows = matrix.values.size(0), columns = matrix.values.size(1);
    matrix.p = first_.narrow(0, p, rows * state_.rank()).view({rows, state_.rank()});
    matrix.q = second_.narrow(0, q, columns * state_.rank()).view({columns, state_.rank()});
    p += matrix.p.numel();
    q += matrix.q.numel();
  }
  for (const at::Tensor& part : whole_) {
    whole_sent_.push_back(first_.narrow(0, p, part.numel()));
    p += part.numel();
  }
}

db_op PowerSgdReduction::operation(int i) {
  if (i == 1) return reduce_q();
  narrow_ = operations() == 2;
  return narrow_ ? reduce_p() : tensors::all_reduce_op(memory_, DB_SUM);
}

db_op PowerSgdReduction::reduce_p() {
  for (Matrix& matrix : matrices_) {
    matrix.values.add_(matrix.error);
    at::mm_out(matrix.p, matrix.values, state_.first_factor(matrix.slot));
  }
  for (size_t i = 0; i < whole_.size(); ++i) whole_sent_[i].copy_(whole_[i]);
  return tensors::all_reduce_op(first_, DB_SUM);
}

// The error is relative to this rank's own part of the sum, P (M^T P)^T. So it is only as large as
// what was lost, and the errors of all ranks add up to what the sum lacks.
db_op PowerSgdReduction::reduce_q() {
  overflow_ = !at::isfinite(first_).all().item<bool>();  // of the sum, so equal on all ranks
  for (Matrix& matrix : matrices_) {
    matrix.p.copy_(orthogonal_columns(matrix.p));
    at::mm_out(matrix.q, matrix.values.t(), matrix.p);
    if (overflow_) continue;
    at::addmm_out(matrix.error, matrix.values, matrix.p, matrix.q.t(), /*beta=*/1, /*alpha=*/-1);
  }
  return tensors::all_reduce_op(second_, DB_SUM);
}

void PowerSgdReduction::finish() {
  if (!narrow_) return;
  for (Matrix& matrix : matrices_) {
    at::mm_out(matrix.values, matrix.p, matrix.q.t());
    if (!overflow_) state_.keep(matrix.slot, matrix.q);
  }
  for (size_t i = 0; i < whole_.size(); ++i) whole_[i].copy_(whole_sent_[i]);
}

}  // namespace coupler::strategy
