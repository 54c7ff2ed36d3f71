#include "strategy/gradient_compression.h"

#include <ATen/Functions.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <utility>

#include "base/log.h"
#include "comm/flight_recorder.h"
#include "strategy/compressed_collectives.h"
#include "tensors/tensor_ops.h"

namespace coupler::strategy {
namespace {

class WholeReduction final : public BucketReduction {
 public:
  explicit WholeReduction(at::Tensor memory) : memory_(std::move(memory)) {}
  int operations() const override { return 1; }
  db_op operation(int) override { return tensors::all_reduce_op(memory_, DB_SUM); }
  void finish() override {}

 private:
  const at::Tensor memory_;
};

}  // namespace

std::unique_ptr<BucketReduction> whole_reduction(at::Tensor memory) {
  return std::make_unique<WholeReduction>(std::move(memory));
}

void require_operation(const comm::Communicator& comm, const std::string& setting, db_kind kind,
                       at::ScalarType type, c10::Device device) {
  db_op op{};
  op.kind = kind;
  op.dtype = tensors::to_db_dtype(type);
  op.reduce = comm::is_reducing(kind) ? DB_SUM : 0;
  op.memory = tensors::memory_of(device);
  if (comm.supports(op)) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("communication.{} needs {} of {}, which '{}' does not support", setting,
                          comm::kind_name(kind), comm::dtype_name(op.dtype), comm.backend()),
              {.subject = "communication." + setting,
               .hint = "set it to its default, or use a transport that supports it; `coupler "
                       "plugins --matrix` shows what each supports"});
}

GradientCompression::GradientCompression(const config::CommunicationConfig& config,
                                         const FlatParameters& flat, const comm::Communicator& comm)
    : flat_(flat),
      rank_(comm.rank()),
      ranks_(comm.size()),
      codec_(make_codec(config)),
      errors_(flat.groups().size()) {
  if (config::is_power_sgd(config)) {
    power_sgd_ = std::make_unique<PowerSgd>(config, flat, comm.rank() == 0);
  }
  if (!lossy()) return;
  bool all = true;
  for (size_t i = 0; i < errors_.size(); ++i) {
    const at::Tensor& like = flat.groups()[i].parameters;
    if (like.scalar_type() != at::kFloat) {
      all = false;
      continue;
    }
    if (codec_ != nullptr ? codec_->needs_error_feedback()
                          : power_sgd_->has_feedback() && !power_sgd_->is_batched()) {
      errors_[i] = at::zeros_like(like);
    }
    if (codec_ != nullptr) {
      require_operation(comm, "gradients", DB_ALL_TO_ALL_V, at::kByte, like.device());
      require_operation(comm, "gradients", DB_ALL_GATHER_V, at::kByte, like.device());
    } else {
      require_operation(comm, "powersgd_dtype", DB_ALL_REDUCE, power_sgd_->sent_type(),
                        like.device());
    }
  }
  if (!all && comm.rank() == 0) {
    log(LogLevel::kWarning, "strategy",
        fmt::format("communication.gradients is {}, which applies only to fp32 gradients; those of "
                    "other types are reduced uncompressed",
                    config.gradients));
  }
}

std::unique_ptr<BucketReduction> GradientCompression::reduction_of(const FlatGroup& group,
                                                                   size_t first_slot,
                                                                   size_t end_slot,
                                                                   const at::Tensor& memory) {
  if (!lossy() || memory.scalar_type() != at::kFloat || memory.numel() == 0) {
    return whole_reduction(memory);
  }
  const auto number = static_cast<size_t>(flat_.slots()[group.first_slot].group);
  const at::Tensor error =
      errors_[number].defined()
          ? errors_[number].narrow(0, flat_.slots()[first_slot].offset, memory.numel())
          : at::Tensor();
  if (power_sgd_ != nullptr) {
    return std::make_unique<PowerSgdReduction>(*power_sgd_, flat_.slots(), first_slot, end_slot,
                                               memory, error);
  }
  return std::make_unique<CompressedAllReduce>(
      memory, error, codec_, padding_in(flat_.slots(), first_slot, end_slot, memory), rank_,
      ranks_);
}

std::vector<StateTensor> GradientCompression::state_tensors() const {
  std::vector<StateTensor> result;
  for (const FlatSlot& slot : flat_.slots()) {
    const at::Tensor& error = errors_[static_cast<size_t>(slot.group)];
    const auto index = static_cast<size_t>(&slot - flat_.slots().data());
    const bool narrow = power_sgd_ != nullptr && power_sgd_->factors()[index].defined();
    if (error.defined() && (power_sgd_ == nullptr || narrow)) {
      result.push_back(
          {.name = "gradient_error/" + slot.name,
           .tensor = error.narrow(0, slot.offset, slot.numel).view(slot.parameter.sizes()),
           .scales_with_loss = true});
    }
    if (!narrow) continue;
    result.push_back(
        {.name = "powersgd_factor/" + slot.name, .tensor = power_sgd_->factors()[index]});
    // Batched, a slot stands for the bucket that begins with it.
    if (const at::Tensor& square = power_sgd_->bucket_errors()[index]; square.defined()) {
      result.push_back(
          {.name = "gradient_error_from/" + slot.name, .tensor = square, .scales_with_loss = true});
    }
  }
  if (power_sgd_ != nullptr) {
    result.push_back({.name = "powersgd_steps", .tensor = power_sgd_->steps()});
  }
  return result;
}

}  // namespace coupler::strategy
