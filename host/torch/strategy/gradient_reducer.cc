#include "strategy/gradient_reducer.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "base/log.h"
#include "tensors/tensor_ops.h"

namespace coupler::strategy {
namespace {

constexpr int64_t kMiB = 1 << 20;
// Below this size a second bucket costs more latency than it saves.
constexpr int64_t kOneBucketBytes = kMiB;
// Rounds through the candidates; the first one warms caches and connections and does not count.
constexpr size_t kRounds = 4;
// To replace one bucket, a plan must be this much faster, since measurements scatter.
constexpr double kMargin = 0.95;

std::string describe_plan(const BucketPlan& plan) {
  if (plan.cap_bytes == 0) return "one";
  return fmt::format("{} MiB {}", plan.cap_bytes / kMiB, plan.overlap ? "overlapped" : "in line");
}

}  // namespace

BucketTuner::BucketTuner(int64_t total_bytes, double cap_mb) {
  if (cap_mb > 0) {
    candidates_ = {{.cap_bytes = static_cast<int64_t>(cap_mb * kMiB), .overlap = true}};
  } else {
    candidates_ = {{.cap_bytes = 0, .overlap = false}};
    if (total_bytes > kOneBucketBytes) {
      candidates_.push_back({.cap_bytes = 1 * kMiB, .overlap = true});
    }
    if (total_bytes > 8 * kMiB) {
      candidates_.push_back({.cap_bytes = 4 * kMiB, .overlap = false});
      candidates_.push_back({.cap_bytes = 16 * kMiB, .overlap = true});
      candidates_.push_back({.cap_bytes = 16 * kMiB, .overlap = false});
    }
  }
  times_.resize(candidates_.size());
  settled_ = candidates_.size() == 1;
}

bool BucketTuner::report(double seconds, comm::Communicator& comm) {
  if (settled_) return false;
  times_[current_].push_back(seconds);
  const size_t before = current_;
  current_ = (current_ + 1) % candidates_.size();
  if (current_ == 0 && times_.back().size() == kRounds) choose_fastest(comm);
  return before != current_;
}

void BucketTuner::choose_fastest(comm::Communicator& comm) {
  settled_ = true;
  std::vector<double> medians;
  for (std::vector<double>& times : times_) {
    std::sort(times.begin() + 1, times.end());
    medians.push_back(times[1 + (times.size() - 1) / 2]);
  }
  const at::Tensor slowest =
      at::from_blob(medians.data(), {static_cast<int64_t>(medians.size())}, at::kDouble);
  comm.run(tensors::all_reduce_op(slowest, DB_MAX));
  const auto best = std::min_element(medians.begin(), medians.end());
  current_ = *best < kMargin * medians[0] ? static_cast<size_t>(best - medians.begin()) : 0;
  if (log_enabled(LogLevel::kInfo, "strategy")) {
    std::string text = "gradient buckets, milliseconds for backward and reduction:";
    for (size_t i = 0; i < candidates_.size(); ++i) {
      text += fmt::format(" {} {:.2f}{}", describe_plan(candidates_[i]), medians[i] * 1e3,
                          i == current_ ? " (chosen);" : ";");
    }
    log(LogLevel::kInfo, "strategy", text);
  }
  times_.clear();
}

namespace {

constexpr double kTorchCap = 25;  // MiB, as in torch's DDP

int64_t gradient_bytes(const FlatParameters& flat) {
  size_t bytes = 0;
  for (const FlatGroup& group : flat.groups()) bytes += group.gradients.nbytes();
  return static_cast<int64_t>(bytes);
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

GradientReducer::GradientReducer(std::string model, FlatParameters& flat,
                                 std::shared_ptr<comm::Communicator> comm,
                                 std::vector<at::Tensor> buffers, double bucket_cap_mb,
                                 const config::CommunicationConfig& communication)
    : model_(std::move(model)),
      flat_(flat),
      comm_(std::move(comm)),
      buffers_(std::move(buffers)),
      compression_(communication, flat, *comm_),
      // Timing a device's queue proves nothing.
      tuner_(gradient_bytes(flat),
             bucket_cap_mb == 0 && !flat.flags().is_cpu() ? kTorchCap : bucket_cap_mb),
      fixed_plan_{
          .cap_bytes = static_cast<int64_t>((bucket_cap_mb > 0 ? bucket_cap_mb : kTorchCap) * kMiB),
          .overlap = true} {
  make_scale();
  taken_.resize(flat_.slots().size());
  for (const FlatGroup& group : flat_.groups()) {
    const at::Tensor& memory = group.gradients;
    comm::Communicator& ranks = group.averaging != nullptr ? *group.averaging : *comm_;
    registered_.push_back(ranks.register_memory(memory.data_ptr(), memory.nbytes()));
  }
  cut_buckets();
}

void GradientReducer::install() {
  for (size_t i = 0; i < flat_.slots().size(); ++i) {
    hooks_.add(flat_.slots()[i].parameter, weak_from_this(), i);
  }
}

void GradientReducer::cut_buckets() {
  buckets_.clear();
  bucket_of_slot_.assign(flat_.slots().size(), 0);
  const int64_t cap = plan().cap_bytes;
  const bool flags_alone = compression_.lossy() || hook_ != nullptr;
  for (const FlatGroup& group : flat_.groups()) {
    const auto element_size = static_cast<int64_t>(group.gradients.element_size());
    const int64_t group_end = flags_alone ? group.parameters.numel() : group.gradients.numel();
    size_t first = group.first_slot;
    while (first < group.end_slot) {
      const int64_t start = flat_.slots()[first].offset;
      size_t end = first + 1;
      auto end_offset = [&](size_t slot) {
        return slot < group.end_slot ? flat_.slots()[slot].offset : group_end;
      };
      while (end < group.end_slot &&
             (cap == 0 || (end_offset(end + 1) - start) * element_size <= cap)) {
        ++end;
      }
      const at::Tensor memory = group.gradients.narrow(0, start, end_offset(end) - start);
      buckets_.push_back({.memory = memory,
                          .comm = group.averaging != nullptr ? group.averaging : comm_,
                          .first_slot = first,
                          .end_slot = end,
                          .reduction = compression_.reduction_of(group, first, end, memory)});
      first = end;
    }
  }
  order_buckets();
  if (hook_ != nullptr) hook_buckets();
  if (!flags_alone) return;
  const size_t none = flat_.slots().size();
  buckets_.push_back({.memory = flat_.flags(),
                      .comm = comm_,
                      .first_slot = none,
                      .end_slot = none,
                      .reduction = whole_reduction(flat_.flags())});
}

// The buckets of several groups take turns, as their gradients arrive: roughly in reverse order of
// registration. The last one may carry the flags and stays.
void GradientReducer::order_buckets() {
  const auto last_registered = [this](const Bucket& bucket) {
    return flat_.slots()[bucket.end_slot - 1].registered;
  };
  std::stable_sort(buckets_.begin(), buckets_.end() - 1, [&](const Bucket& a, const Bucket& b) {
    return last_registered(a) > last_registered(b);
  });
  for (size_t i = 0; i < buckets_.size(); ++i) {
    for (size_t slot = buckets_[i].first_slot; slot < buckets_[i].end_slot; ++slot)
      bucket_of_slot_[slot] = i;
  }
}

void GradientReducer::hook_buckets() {
  for (Bucket& bucket : buckets_) {
    BucketContent content{
        .model = model_,
        .index = static_cast<size_t>(&bucket - buckets_.data()),
        .last = &bucket == &buckets_.back(),
        .buffer = bucket.memory,
        .result = bucket.memory,
        .padding = padding_in(flat_.slots(), bucket.first_slot, bucket.end_slot, bucket.memory)};
    for (size_t slot = bucket.first_slot; slot < bucket.end_slot; ++slot) {
      content.names.push_back(flat_.slots()[slot].name);
      content.parameters.push_back(flat_.slots()[slot].parameter);
      content.gradients.push_back(flat_.slots()[slot].gradient);
    }
    bucket.hooked = std::make_shared<HookedBucket>(
        std::move(content), comm_, [comm = comm_, reduction = bucket.reduction.get()] {
          return std::make_shared<ReductionWork>(*comm, *reduction, /*overlap=*/true);
        });
  }
}

void GradientReducer::use_hook(std::shared_ptr<const NamedHook> hook) {
  hook_ = std::move(hook);
  make_scale();
  cut_buckets();
}

void GradientReducer::on_gradient(size_t slot) {
  if (!sync()) return;
  if (!active_) {
    begin();
    after_backward([weak = weak_from_this()] {
      if (auto self = weak.lock()) self->finish();
    });
  }
  if (taken_[slot] != 0) throw_second_gradient(flat_.slots()[slot].name);
  take_gradient(slot);
  --buckets_[bucket_of_slot_[slot]].pending;
  launch_ready();
}

void GradientReducer::begin() {
  if (hook_ != wanted_hook_) use_hook(wanted_hook_);
  active_ = true;
  touched_ = true;
  began_ = now_seconds();
  std::fill(taken_.begin(), taken_.end(), uint8_t{0});
  for (Bucket& bucket : buckets_) {
    bucket.pending = bucket.end_slot - bucket.first_slot;
    bucket.work.reset();
    bucket.complete = false;
  }
  compression_.begin_backward();
  next_bucket_ = 0;
  next_handed_ = 0;
  notify_backward_begin();
}

// Copies the gradient, scaled, into its place; scales it in place if .grad is already our view.
void GradientReducer::take_gradient(size_t index) {
  at::NoGradGuard no_grad;
  FlatSlot& slot = flat_.slots()[index];
  at::Tensor& gradient = slot.parameter.mutable_grad();
  require_dense_gradient(gradient, slot.name);
  taken_[index] = 1;
  if (gradient.is_same(slot.gradient)) {
    slot.gradient.mul_(scale_);
    return;
  }
  at::mul_out(slot.gradient, gradient, scale_);
  gradient = slot.gradient;
}

void GradientReducer::launch_ready() {
  // The last bucket carries the flags, which are complete only after backward; finish() sends it.
  while (next_bucket_ + 1 < buckets_.size() && buckets_[next_bucket_].pending == 0) {
    launch(buckets_[next_bucket_++]);
  }
  if (!has_consumers()) return;
  // During backward, every parameter of a launched bucket has a gradient from this rank.
  for (; next_handed_ < next_bucket_; ++next_handed_) {
    Bucket& bucket = buckets_[next_handed_];
    if (!bucket.work->done()) return;
    hand_over(bucket);
  }
}

void GradientReducer::hand_over(Bucket& bucket) {
  complete(bucket);
  notify_gradients_ready(flat_, bucket.first_slot, bucket.end_slot);
}

void GradientReducer::launch(Bucket& bucket) {
  const at::NoGradGuard no_grad;
  const auto index = static_cast<size_t>(&bucket - buckets_.data());
  // Nothing overlaps with the last bucket, unless gradients are used meanwhile.
  const bool alone = &bucket == &buckets_.back() && !has_consumers();
  const bool overlap = plan().overlap && !alone;
  if (bucket.hooked != nullptr) {
    bucket.work = std::make_unique<HookWork>(hook_, bucket.hooked);
  } else {
    bucket.work = std::make_unique<ReductionWork>(*bucket.comm, *bucket.reduction, overlap);
  }
  if (overlap) {
    bucket.work->step();
    advance_earlier_buckets(index);
    return;
  }
  while (advance_earlier_buckets(index)) {
  }
  while (bucket.work->more()) bucket.work->step();
}

// Takes the next step of each bucket before `end` that has one left; true if there was any.
bool GradientReducer::advance_earlier_buckets(size_t end) {
  bool any = false;
  for (size_t i = 0; i < end; ++i) {
    GradientWork& work = *buckets_[i].work;
    if (!work.more()) continue;
    work.step();
    any = true;
  }
  return any;
}

void GradientReducer::complete(Bucket& bucket) {
  if (bucket.complete) return;
  bucket.work->finish();
  bucket.complete = true;
}

void GradientReducer::begin_backward(double factor) {
  touched_ = false;
  set_factor(factor);
}

void GradientReducer::set_factor(double factor) {
  if (factor == factor_) return;
  factor_ = factor;
  make_scale();
}

void GradientReducer::make_scale() {
  scale_ = at::scalar_tensor(hook_ != nullptr ? factor_ : factor_ / comm_->size(), at::kDouble);
}

void GradientReducer::end_backward(bool takes_part) {
  if (!takes_part) set_factor(1);
  if (!takes_part || !sync() || touched_ || active_) return;
  begin();
  finish();
}

void GradientReducer::abandon_backward() {
  active_ = false;
  set_factor(1);
  for (Bucket& bucket : buckets_) bucket.work.reset();
}

void GradientReducer::finish() {
  at::NoGradGuard no_grad;
  active_ = false;
  for (size_t i = 0; i < taken_.size(); ++i) {
    if (taken_[i] != 0) continue;
    FlatSlot& slot = flat_.slots()[i];
    // It may be accumulated by earlier backwards without synchronization.
    if (slot.parameter.grad().defined()) {
      take_gradient(i);
    } else {
      slot.gradient.zero_();
    }
  }
  flat_.flags().copy_(
      at::from_blob(taken_.data(), {static_cast<int64_t>(taken_.size())}, at::kByte));
  const size_t complete_here = has_consumers() ? next_bucket_ : 0;
  while (next_bucket_ < buckets_.size()) launch(buckets_[next_bucket_++]);
  while (advance_earlier_buckets(buckets_.size())) {
  }
  for (; next_handed_ < complete_here; ++next_handed_) hand_over(buckets_[next_handed_]);
  for (Bucket& bucket : buckets_) complete(bucket);
  publish_gradients();
  set_factor(1);
  if (!buffers_.empty()) tensors::broadcast_coalesced(*comm_, buffers_, 0);
  if (!bounds_are_fixed() && tuner_.report(now_seconds() - began_, *comm_)) cut_buckets();
}

// Gives parameters that only other ranks used their gradient here, too.
void GradientReducer::publish_gradients() {
  at::Tensor flags;  // on the host
  for (size_t i = 0; i < taken_.size(); ++i) {
    if (taken_[i] != 0) continue;
    if (!flags.defined()) flags = flat_.flags().cpu();
    const bool used = flags[static_cast<int64_t>(i)].item<double>() > 0;
    if (used) flat_.slots()[i].parameter.mutable_grad() = flat_.slots()[i].gradient;
  }
}

}  // namespace coupler::strategy
