#include "strategy/power_sgd.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/log.h"
#include "tensors/tensor_ops.h"

namespace coupler::strategy {
namespace {

int64_t rows_of(at::IntArrayRef sizes) { return sizes[0]; }
int64_t columns_of(at::IntArrayRef sizes) { return c10::multiply_integers(sizes.slice(1)); }

// The side of the square that holds as many elements.
int64_t side_of(int64_t elements) {
  auto side = static_cast<int64_t>(std::sqrt(static_cast<double>(elements)));
  while (side * side < elements) ++side;
  return side;
}

at::ScalarType type_of(const std::string& name) {
  if (name == "fp16") return at::kHalf;
  return name == "bf16" ? at::kBFloat16 : at::kFloat;
}

bool all_finite(const at::Tensor& tensor) { return at::isfinite(tensor).all().item<bool>(); }

// An all-reduce of the values, or of their copy in a narrower type, which rounds them, too.
db_op sum_of(const at::Tensor& values, const at::Tensor& narrow) {
  if (!narrow.defined()) return tensors::all_reduce_op(values, DB_SUM);
  narrow.copy_(values);
  values.copy_(narrow);
  return tensors::all_reduce_op(narrow, DB_SUM);
}

}  // namespace

PowerSgd::PowerSgd(const config::CommunicationConfig& config, const FlatParameters& flat, bool says)
    : rank_(config.powersgd_rank),
      start_(config.powersgd_start_step),
      warm_(config.powersgd_warm_start),
      feedback_(config.powersgd_error_feedback),
      batched_(config.gradients == "batched_powersgd"),
      min_rate_(config.powersgd_min_compression_rate),
      epsilon_(config.powersgd_orthogonalization_epsilon),
      sent_type_(type_of(config.powersgd_dtype)),
      factors_(flat.slots().size()),
      bucket_errors_(flat.slots().size()),
      steps_(at::full({1}, -1, at::kLong)) {
  if (batched_) return;
  for (size_t i = 0; i < factors_.size(); ++i) {
    const FlatSlot& slot = flat.slots()[i];
    const at::IntArrayRef sizes = slot.parameter.sizes();
    if (slot.parameter.scalar_type() != at::kFloat || slot.numel == 0 || sizes.size() < 2) continue;
    const int64_t rank = rank_for(rows_of(sizes), columns_of(sizes));
    if (rank > 0) factors_[i] = at::zeros({columns_of(sizes), rank}, slot.parameter.options());
  }
  if (says) describe_uncompressed(flat);
}

int64_t PowerSgd::rank_for(int64_t rows, int64_t columns) const {
  const int64_t rank = std::min({rank_, rows, columns});
  const auto factors = static_cast<double>((rows + columns) * rank);
  return factors * min_rate_ < static_cast<double>(rows * columns) ? rank : 0;
}

void PowerSgd::describe_uncompressed(const FlatParameters& flat) const {
  std::vector<std::string> too_small;
  for (size_t i = 0; i < factors_.size(); ++i) {
    const FlatSlot& slot = flat.slots()[i];
    const at::IntArrayRef sizes = slot.parameter.sizes();
    if (factors_[i].defined() || sizes.size() < 2) continue;
    if (rank_ > std::min(rows_of(sizes), columns_of(sizes))) {
      too_small.push_back(fmt::format("'{}' [{}]", slot.name, fmt::join(sizes, ", ")));
    }
  }
  if (!too_small.empty()) {
    log(LogLevel::kWarning, "strategy",
        fmt::format("communication.powersgd_rank is {}, which exceeds the smaller dimension of {}: "
                    "reduced uncompressed",
                    rank_, fmt::join(too_small, ", ")));
  }
  const bool none = std::none_of(factors_.begin(), factors_.end(),
                                 [](const at::Tensor& factor) { return factor.defined(); });
  if (!none) return;
  log(LogLevel::kWarning, "strategy",
      fmt::format("communication.gradients is powersgd, but factors of rank {} are not {} times "
                  "smaller than any gradient of the model: all are reduced uncompressed; set a "
                  "lower communication.powersgd_rank",
                  rank_, min_rate_));
}

void PowerSgd::add_bucket(size_t first_slot, const at::Tensor& memory) {
  const int64_t side = side_of(memory.numel());
  const int64_t rank = rank_for(side, side);
  at::Tensor& factor = factors_[first_slot];
  if (rank == 0 || (factor.defined() && factor.size(0) == side)) return;
  factor = at::zeros({side, rank}, memory.options());
  if (feedback_) bucket_errors_[first_slot] = at::zeros({side, side}, memory.options());
}

at::Tensor PowerSgd::orthogonal_columns(const at::Tensor& matrix) const {
  const int64_t columns = matrix.size(1);
  if (columns > 1 && epsilon_ == 0) return std::get<0>(at::linalg_qr(matrix));
  at::Tensor result = matrix.clone();
  for (int64_t i = 0; i < columns; ++i) {
    at::Tensor column = result.narrow(1, i, 1);
    // The tiny addend keeps a column of zeros zero.
    column.div_(at::linalg_vector_norm(column) + (epsilon_ > 0 ? epsilon_ : 1e-30));
    at::Tensor rest = result.narrow(1, i + 1, columns - i - 1);
    if (rest.numel() > 0) rest.sub_(at::mm(column, at::mm(column.t(), rest)));
  }
  return result;
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
                                     size_t first_slot, size_t end_slot, at::Tensor memory,
                                     const at::Tensor& error)
    : state_(state), memory_(std::move(memory)) {
  if (state_.is_batched()) {
    state_.add_bucket(first_slot, memory_);
    padding_ = padding_in(slots, first_slot, end_slot, memory_);
    if (state_.factors()[first_slot].defined()) add_square(first_slot);
  } else {
    add_matrices(slots, first_slot, end_slot, error);
  }
  if (!matrices_.empty()) make_buffers();
}

void PowerSgdReduction::add_matrices(const std::vector<FlatSlot>& slots, size_t first_slot,
                                     size_t end_slot, const at::Tensor& error) {
  int64_t whole_from = 0;
  const auto leave_whole = [&](int64_t end) {
    if (end > whole_from) whole_.push_back(memory_.narrow(0, whole_from, end - whole_from));
  };
  for (size_t i = first_slot; i < end_slot; ++i) {
    const FlatSlot& slot = slots[i];
    if (!state_.factors()[i].defined()) continue;
    const int64_t at = slot.offset - slots[first_slot].offset;
    const int64_t rows = rows_of(slot.parameter.sizes());
    leave_whole(at);
    whole_from = at + slot.numel;
    const auto matrix = [&](const at::Tensor& flat) {
      return flat.narrow(0, at, slot.numel).view({rows, slot.numel / rows});
    };
    matrices_.push_back({.slot = i,
                         .values = matrix(memory_),
                         .error = error.defined() ? matrix(error) : at::Tensor()});
  }
  leave_whole(memory_.numel());
}

void PowerSgdReduction::add_square(size_t slot) {
  const int64_t side = state_.factors()[slot].size(0);
  square_ = at::zeros({side * side}, memory_.options());
  matrices_.push_back(
      {.slot = slot, .values = square_.view({side, side}), .error = state_.bucket_errors()[slot]});
}

void PowerSgdReduction::make_buffers() {
  int64_t p_elements = 0, q_elements = 0, whole_elements = 0;
  for (const Matrix& matrix : matrices_) {
    const int64_t rank = state_.factors()[matrix.slot].size(1);
    p_elements += matrix.values.size(0) * rank;
    q_elements += matrix.values.size(1) * rank;
  }
  for (const at::Tensor& part : whole_) whole_elements += part.numel();
  first_ = at::zeros({p_elements + whole_elements}, memory_.options());
  second_ = at::zeros({q_elements}, memory_.options());
  if (state_.sent_type() != memory_.scalar_type()) {
    first_narrow_ = at::zeros_like(first_, state_.sent_type());
    second_narrow_ = at::zeros_like(second_, state_.sent_type());
  }
  int64_t p = 0, q = 0;
  for (Matrix& matrix : matrices_) {
    const int64_t rank = state_.factors()[matrix.slot].size(1);
    const int64_t rows = matrix.values.size(0), columns = matrix.values.size(1);
    matrix.p = first_.narrow(0, p, rows * rank).view({rows, rank});
    matrix.q = second_.narrow(0, q, columns * rank).view({columns, rank});
    p += matrix.p.numel();
    q += matrix.q.numel();
  }
  for (const at::Tensor& part : whole_) {
    whole_places_.push_back(first_.narrow(0, p, part.numel()));
    p += part.numel();
  }
}

db_op PowerSgdReduction::operation(int i) {
  if (i == 1) return reduce_q();
  narrow_ = operations() == 2;
  return narrow_ ? reduce_p() : tensors::all_reduce_op(memory_, DB_SUM);
}

db_op PowerSgdReduction::reduce_p() {
  if (square_.defined()) {
    square_.zero_();
    square_.narrow(0, 0, memory_.numel()).copy_(memory_);
  }
  for (Matrix& matrix : matrices_) {
    if (matrix.error.defined()) matrix.values.add_(matrix.error);
    at::mm_out(matrix.p, matrix.values, state_.first_factor(matrix.slot));
  }
  for (size_t i = 0; i < whole_.size(); ++i) whole_places_[i].copy_(whole_[i]);
  return sum_of(first_, first_narrow_);
}

// The error is relative to this rank's own part of the sum, P (M^T P)^T, with Q as it is sent. So
// it is only as large as what was lost, and the errors of all ranks add up to what the sum lacks.
db_op PowerSgdReduction::reduce_q() {
  if (first_narrow_.defined()) first_.copy_(first_narrow_);
  overflow_ = !all_finite(first_);  // of the sum, so equal on all ranks
  for (Matrix& matrix : matrices_) {
    matrix.p.copy_(state_.orthogonal_columns(matrix.p));
    at::mm_out(matrix.q, matrix.values.t(), matrix.p);
  }
  const db_op op = sum_of(second_, second_narrow_);
  for (Matrix& matrix : matrices_) {
    if (overflow_ || !matrix.error.defined()) continue;
    // With fp16, Q may be infinite although M is finite.
    const at::Tensor own = second_narrow_.defined() ? matrix.q.nan_to_num(0, 0, 0) : matrix.q;
    at::addmm_out(matrix.error, matrix.values, matrix.p, own.t(), /*beta=*/1, /*alpha=*/-1);
  }
  return op;
}

void PowerSgdReduction::finish() {
  if (!narrow_) return;
  if (second_narrow_.defined()) {
    second_.copy_(second_narrow_);
    overflow_ = overflow_ || !all_finite(second_);
  }
  for (Matrix& matrix : matrices_) {
    at::mm_out(matrix.values, matrix.p, matrix.q.t());
    if (!overflow_) state_.keep(matrix.slot, matrix.q);
  }
  for (size_t i = 0; i < whole_.size(); ++i) whole_[i].copy_(whole_places_[i]);
  if (!square_.defined()) return;
  memory_.copy_(square_.narrow(0, 0, memory_.numel()));
  for (const at::Tensor& part : padding_) part.zero_();
}

}  // namespace coupler::strategy
