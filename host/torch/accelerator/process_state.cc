#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <coupler/accelerator.h>
#include <coupler/batch_size.h>
#include <coupler/error.h>
#include <coupler/logging.h>
#include <coupler/processes.h>
#include <fmt/format.h>

#include <cstdlib>
#include <mutex>
#include <new>
#include <set>
#include <string_view>
#include <utility>

#include "accelerator/accelerator.h"
#include "base/error.h"
#include "base/log.h"
#include "device/device_memory.h"
#include "groups/mesh.h"
#include "rendezvous/process_info.h"
#include "tensors/tensor_ops.h"

namespace coupler {
namespace {

ProcessPlace place_of(const rendezvous::ProcessInfo& process) {
  return {process.rank, process.world_size, process.local_rank, process.local_world_size};
}

ProcessPlace place_of(const Processes& processes) {
  return {processes.rank(), processes.world_size(), processes.local_rank(),
          processes.local_world_size()};
}

}  // namespace

PartialState::PartialState() {
  const Accelerator* const accelerator = current_accelerator();
  set_place(accelerator != nullptr ? place_of(*accelerator)
                                   : place_of(rendezvous::detect_process()));
}

void PartialState::wait_for_everyone(CallSite) {
  if (Accelerator* const accelerator = current_accelerator()) {
    accelerator->wait_for_everyone();
  } else if (world_size() > 1) {
    fail_usage("PartialState: processes cannot wait for each other yet", "",
               "make the coupler::Accelerator first: it connects them");
  }
}

AcceleratorState::AcceleratorState() : accelerator_(current_accelerator()) {
  if (accelerator_ == nullptr) {
    fail_usage("AcceleratorState: the program has no Accelerator", "",
               "make a coupler::Accelerator first, and keep it while it is used");
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

namespace {

// Ranks of a tensor group draw the same numbers.
int own_seed_number() {
  const Accelerator* const accelerator = current_accelerator();
  if (accelerator == nullptr) return PartialState().rank();
  return groups::group_number(accelerator->mesh(), groups::kTensor);
}

}  // namespace

void set_seed(uint64_t seed, const SeedOptions& options) {
  if (options.device_specific) seed += static_cast<uint64_t>(own_seed_number());
  at::manual_seed(seed);
  std::srand(static_cast<unsigned>(seed));
  at::globalContext().setDeterministicAlgorithms(options.deterministic, /*warn_only=*/false);
}

void Accelerator::synchronize_random_state() {
  const auto synchronize = [this](at::Generator generator) {
    const std::lock_guard lock(generator.mutex());
    const at::Tensor state = broadcast(generator.get_state());
    generator.set_state(state);
  };
  synchronize(at::detail::getDefaultCPUGenerator());
  if (const auto own = device::device_generator(device())) synchronize(*own);
}

bool Logger::enabled(LogLevel level) const { return log_enabled(level, name_); }

void Logger::log(LogLevel level, std::string_view message, const LogOptions& options) const {
  PartialState state;
  if (!options.in_order) {
    if (!options.main_process_only || state.is_main_process()) coupler::log(level, name_, message);
    return;
  }
  for (int rank = 0; rank < state.world_size(); ++rank) {
    if (rank == state.rank()) coupler::log(level, name_, message);
    state.wait_for_everyone();
  }
}

void Logger::warning_once(std::string_view message, const LogOptions& options) const {
  static std::mutex mutex;
  static std::set<std::pair<std::string, std::string>> written;
  {
    const std::lock_guard lock(mutex);
    if (!written.emplace(name_, message).second) return;
  }
  warning(message, options);
}

// How prepared data loaders communicate with other ranks, and join_uneven_inputs.

namespace {

// Uses the Accelerator's communicator. The thread that runs the loop issues the collectives in the
// same order on every rank. A loader may outlive the Accelerator, but must not be used then.
class CommunicatorPeers : public detail::LoaderPeers {
 public:
  explicit CommunicatorPeers(std::weak_ptr<comm::Communicator> comm) : comm_(std::move(comm)) {}

  bool any(bool mine) override {
    return tensors::all_reduce_number(comm(), mine ? 1 : 0, DB_MAX) != 0;
  }

  std::vector<int64_t> all(int64_t mine) override {
    comm::Communicator& communicator = comm();
    std::vector<int64_t> result(static_cast<size_t>(communicator.size()));
    communicator.run(tensors::host_op(DB_ALL_GATHER, DB_I64, &mine, result.data(), 1));
    return result;
  }

  void broadcast(void* data, size_t size) override {
    comm().run(tensors::host_op(DB_BROADCAST, DB_U8, data, data, size));
  }

 private:
  comm::Communicator& comm() const {
    const auto comm = comm_.lock();
    if (comm == nullptr)
      fail_usage("a data loader is used after its Accelerator was destroyed", "data loader",
                 "keep the Accelerator alive while its loaders are in use");
    return *comm;
  }

  std::weak_ptr<comm::Communicator> comm_;
};

using Loaders = std::vector<std::shared_ptr<detail::LoaderCore>>;

void leave(const Loaders& joined) {
  for (const auto& loader : joined) loader->join(false, std::nullopt);
}

}  // namespace

std::shared_ptr<detail::LoaderPeers> Accelerator::loader_peers() const {
  if (impl_->sample_comm->size() == 1) return nullptr;
  return std::make_shared<CommunicatorPeers>(impl_->sample_comm);
}

std::pair<int, int> Accelerator::sample_place() const {
  return {impl_->sample_comm->rank(), impl_->sample_comm->size()};
}

ScopeGuard Accelerator::begin_join(std::shared_ptr<detail::LoaderCore> only,
                                   std::optional<bool> even_batches) {
  Loaders joined;
  try {
    for (const auto& weak : impl_->loaders) {
      auto loader = weak.lock();
      if (loader == nullptr || (only != nullptr && loader != only)) continue;
      loader->join(true, even_batches);
      joined.push_back(std::move(loader));
    }
  } catch (...) {
    leave(joined);
    throw;
  }
  if (only != nullptr && joined.empty())
    fail_usage("join_uneven_inputs: the data loader was not prepared", "data loader",
               "pass it to accelerator.prepare first");
  return ScopeGuard([joined = std::move(joined)] { leave(joined); });
}

}  // namespace coupler

namespace coupler::detail {
namespace {

int64_t checked_batch_size(int64_t batch_size) {
  if (batch_size >= 1) return batch_size;
  fail_argument(fmt::format("find_executable_batch_size: the starting batch size is {}, but must "
                            "be at least 1",
                            batch_size),
                "starting_batch_size");
}

}  // namespace

BatchSizeSearch::BatchSizeSearch(Accelerator& accelerator, int64_t starting_batch_size)
    : accelerator_(accelerator),
      starting_batch_size_(checked_batch_size(starting_batch_size)),
      starting_steps_(accelerator.gradient_accumulation_steps()),
      batch_size_(starting_batch_size) {}

bool BatchSizeSearch::is_out_of_memory(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    return true;
  } catch (const c10::OutOfMemoryError&) {
    return true;
  } catch (const Error& own) {
    return own.code() == ErrorCode::kOutOfMemory;
  } catch (const c10::Error& other) {
    // LibTorch's host allocator has no error type of its own.
    return std::string_view(other.what()).find("DefaultCPUAllocator: ") != std::string_view::npos;
  } catch (...) {
    return false;
  }
}

bool BatchSizeSearch::succeeded(bool here) {
  const at::Tensor flag = at::scalar_tensor(here ? 1 : 0, at::kInt);
  if (accelerator_.reduce(flag, ReduceOp::kMin).item<int>() == 1) return true;
  accelerator_.free_memory();
  const int64_t failed = batch_size_;
  do {
    --batch_size_;
  } while (batch_size_ > 0 && starting_batch_size_ % batch_size_ != 0);
  if (batch_size_ == 0) {
    accelerator_.set_gradient_accumulation_steps(starting_steps_);
    fail_usage("find_executable_batch_size: memory runs out even with a batch size of 1",
               "batch_size", "use a smaller model, a backend that shards it, or a lower precision");
  }
  const int64_t steps = starting_steps_ * (starting_batch_size_ / batch_size_);
  accelerator_.set_gradient_accumulation_steps(steps);
  if (accelerator_.is_main_process()) {
    log(LogLevel::kWarning, "train",
        fmt::format("memory ran out with a batch size of {}: trying {} with {} accumulation steps",
                    failed, batch_size_, steps));
  }
  return false;
}

}  // namespace coupler::detail
