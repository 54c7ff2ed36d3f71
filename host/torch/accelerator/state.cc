#include <coupler/accelerator.h>
#include <coupler/error.h>
#include <coupler/state.h>

#include "accelerator/accelerator_impl.h"
#include "accelerator/current.h"
#include "rendezvous/process_info.h"

namespace coupler {
namespace {

ProcessPlace place_of(const ProcessInfo& process) {
  return {process.rank, process.world, process.local_rank, process.local_world};
}

ProcessPlace place_of(const Processes& processes) {
  return {processes.rank(), processes.world(), processes.local_rank(), processes.local_world()};
}

}  // namespace

PartialState::PartialState() {
  const Accelerator* const accelerator = current_accelerator();
  set_place(accelerator != nullptr ? place_of(*accelerator) : place_of(detect_process()));
}

void PartialState::wait_for_everyone(CallSite) {
  if (Accelerator* const accelerator = current_accelerator()) {
    accelerator->wait_for_everyone();
  } else if (world() > 1) {
    throw Error(ErrorCode::kUsage, "PartialState: processes cannot wait for each other yet",
                {.hint = "make the coupler::Accelerator first: it connects them"});
  }
}

AcceleratorState::AcceleratorState() : accelerator_(current_accelerator()) {
  if (accelerator_ == nullptr) {
    throw Error(ErrorCode::kUsage, "AcceleratorState: the program has no Accelerator",
                {.hint = "make a coupler::Accelerator first, and keep it while it is used"});
  }
}

bool AcceleratorState::exists() { return current_accelerator() != nullptr; }
at::Device AcceleratorState::device() const { return accelerator_->device(); }
std::string AcceleratorState::backend() const { return accelerator_->backend(); }
std::string AcceleratorState::mixed_precision() const { return accelerator_->mixed_precision(); }
int64_t AcceleratorState::gradient_accumulation_steps() const {
  return accelerator_->gradient_accumulation_steps();
}

GradientState::GradientState() : accelerator_(current_accelerator()) {}

int64_t GradientState::num_steps() const {
  return accelerator_ == nullptr ? 1 : accelerator_->gradient_accumulation_steps();
}

bool GradientState::sync_gradients() const {
  return accelerator_ == nullptr || accelerator_->sync_gradients();
}

bool GradientState::in_dataloader() const {
  return accelerator_ != nullptr && accelerator_->impl_->current_loader() != nullptr;
}

bool GradientState::end_of_dataloader() const {
  const auto loader = accelerator_ == nullptr ? nullptr : accelerator_->impl_->current_loader();
  return loader != nullptr && loader->at_last_batch();
}

int64_t GradientState::own_samples() const {
  if (accelerator_ == nullptr) return -1;
  const auto samples = accelerator_->impl_->batch_samples();
  return samples ? samples->own : -1;
}

}  // namespace coupler
