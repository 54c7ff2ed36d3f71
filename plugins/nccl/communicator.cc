#include "nccl/communicator.h"

#include <coupler/registration.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/shrink.h"
#include "nccl/calls.h"
#include "nccl/failures.h"
#include "nccl/library.h"
#include "nccl/op_queue.h"

namespace db::nccl {
namespace {

// The settings from create, kept for split.
struct Setup {
  int device = 0;
  int64_t timeout_ns = 0;
  Settings settings;
};

struct Communicator : db_communicator {
  Communicator(const Setup& chosen, std::unique_ptr<OpQueue> made);
  const Setup setup;
  const std::unique_ptr<OpQueue> queue;
};

Communicator& of(db_communicator* communicator) {
  return *static_cast<Communicator*>(communicator);
}
const Communicator& of(const db_communicator* communicator) {
  return *static_cast<const Communicator*>(communicator);
}

// A better message than "unsupported" for programs with tensors on the CPU.
Failure refuse_host_memory(const db_op& op) {
  std::string what = kind_name(op.kind);
  if (op.kind != DB_BARRIER) what += std::string(" of ") + dtype_name(op.dtype);
  return Failure::make(DB_ERR_UNSUPPORTED,
                       "nccl: " + what +
                           " was given a tensor on the CPU; NCCL moves CUDA tensors only. Move it "
                           "to this rank's device first, or use gloo_cpu or mpi for CPU tensors");
}

db_status supports(const db_communicator*, const db_op* op, int32_t* score) {
  *score = score_of(*op);
  return DB_OK;
}

db_status submit(db_communicator* communicator, const db_op* raw, db_request** request,
                 db_error* error) {
  *request = nullptr;
  return guarded("nccl: ", error, [&] {
    const Communicator& self = of(communicator);
    Op op;
    const Failure invalid =
        validate(raw, self.rank, self.size, self.setup.timeout_ns, &op, score_of);
    if (!invalid.ok()) {
      const bool on_host = invalid.status == DB_ERR_UNSUPPORTED && is_valid_kind(raw->kind) &&
                           raw->memory != DB_MEMORY_CUDA;
      return report(on_host ? refuse_host_memory(*raw) : invalid, error);
    }
    return self.queue->submit(op, static_cast<cudaStream_t>(raw->stream), request, error);
  });
}

db_status test(db_request* request, db_error* error) {
  return guarded("nccl: ", error, [&] { return OpQueue::test(request, error); });
}

db_status wait_host(db_request* request, int64_t timeout_ns, db_error* error) {
  return guarded("nccl: ", error, [&] { return OpQueue::wait(request, timeout_ns, error); });
}

db_status wait_stream(db_request* request, void* stream, db_error* error) {
  return guarded("nccl: ", error, [&] {
    return OpQueue::wait_stream(request, static_cast<cudaStream_t>(stream), error);
  });
}

void release(db_request* request) {
  guarded("nccl: ", nullptr, [&]() -> Failure {
    OpQueue::release(request);
    return {};
  });
}

db_status async_error(const db_communicator* communicator, db_error* error) {
  return of(communicator).queue->async_error(error);
}

db_status abort(db_communicator* communicator) {
  return guarded("nccl: ", nullptr, [&] {
    of(communicator).queue->fail(Failure::make(DB_ERR_ABORTED, "nccl: abort was called"));
    return db_status{DB_OK};
  });
}

void destroy(db_communicator* communicator) {
  if (communicator != nullptr) delete &of(communicator);
}

// comm is ready; takes ownership of it.
Failure open(const Setup& setup, ncclComm_t comm, db_communicator** result) {
  std::unique_ptr<OpQueue> queue;
  Failure failure = OpQueue::create(comm, setup.device, setup.settings, &queue);
  if (failure.ok()) *result = new Communicator(setup, std::move(queue));
  return failure;
}

// The last step of split and shrink: child, if not NULL, becomes the result.
Failure adopt(const Communicator& self, Failure failure, ncclComm_t child, const char* what,
              db_communicator** result) {
  if (!failure.ok() || child == nullptr) return failure;
  const int64_t timeout_ns = self.setup.timeout_ns;
  failure = wait_until_ready(child, what, deadline_after(timeout_ns), timeout_ns);
  if (failure.ok()) failure = open(self.setup, child, result);
  if (!failure.ok()) self.queue->fail(failure);
  return failure;
}

db_status split(db_communicator* communicator, int32_t color, int32_t key, db_communicator** result,
                db_error* error) {
  *result = nullptr;
  return guarded("nccl: ", error, [&] {
    const Communicator& self = of(communicator);
    ncclComm_t child = nullptr;
    const Failure failure = self.queue->split(color, key, self.setup.timeout_ns, &child);
    return adopt(self, failure, child, "split", result);
  });
}

db_status shrink(db_communicator* communicator, const int32_t* excluded, uint64_t excluded_count,
                 uint64_t flags, db_communicator** result, db_error* error) {
  *result = nullptr;
  return guarded("nccl: ", error, [&] {
    const Communicator& self = of(communicator);
    std::vector<int32_t> ranks;
    Failure failure = check_excluded(self.rank, self.size, excluded, excluded_count, flags, &ranks);
    if (!failure.ok()) {
      failure.message = "nccl: " + failure.message;
      return failure;
    }
    ncclComm_t child = nullptr;
    failure = self.queue->shrink(std::move(ranks), (flags & DB_SHRINK_ABORT) != 0,
                                 self.setup.timeout_ns, &child);
    return adopt(self, failure, child, "shrink", result);
  });
}

db_status add_registration(db_communicator* communicator, void* buffer, uint64_t bytes,
                           void** handle, db_error* error) {
  *handle = nullptr;
  return guarded("nccl: ", error, [&] {
    const Communicator& self = of(communicator);
    if (buffer == nullptr || bytes == 0)
      return Failure::invalid("nccl: cannot register an empty buffer");
    return self.queue->register_buffer(buffer, bytes, self.setup.timeout_ns, handle);
  });
}

db_status remove_registration(db_communicator* communicator, void* handle, db_error* error) {
  return guarded("nccl: ", error, [&] {
    const Communicator& self = of(communicator);
    return self.queue->deregister_buffer(handle, self.setup.timeout_ns);
  });
}

constexpr db_shrink kShrink = {sizeof(db_shrink), shrink};
constexpr db_registration kRegistration = {sizeof(db_registration), add_registration,
                                           remove_registration};

// Available if this NCCL has the functions they need.
const void* communicator_extension(const db_communicator*, const char* id) {
  if (id == nullptr) return nullptr;
  const std::string_view name = id;
  if (name == DB_SHRINK && nccl().CommShrink != nullptr) return &kShrink;
  if (name == DB_REGISTRATION && nccl().CommRegister != nullptr && nccl().CommDeregister != nullptr)
    return &kRegistration;
  return nullptr;
}

constexpr db_communicator_functions kFunctions = {
    sizeof(db_communicator_functions),
    supports,
    submit,
    test,
    wait_host,
    wait_stream,
    release,
    split,
    async_error,
    abort,
    destroy,
    communicator_extension,
};

Communicator::Communicator(const Setup& chosen, std::unique_ptr<OpQueue> made)
    : db_communicator{sizeof(db_communicator), &kFunctions, made->rank(), made->size()},
      setup(chosen),
      queue(std::move(made)) {}

std::string visible_devices() {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible != nullptr ? std::string(" (CUDA_VISIBLE_DEVICES=") + visible + ")" : "";
}

// *device: the device that the host names; otherwise the one with this rank's number on its
// machine, or the only visible one. Fewer devices than ranks are an error.
Failure choose_device(const db_communicator_params& params, int* device) {
  const int devices = libraries().devices;
  const bool told = params.device_index >= 0;
  *device = told ? params.device_index : params.local_rank;
  // A launcher may have made only its own GPU visible to each rank.
  if (!told && devices == 1) *device = 0;
  if (*device >= 0 && *device < devices) return {};
  return Failure::invalid("nccl: rank " + std::to_string(params.rank) + " needs CUDA device " +
                          std::to_string(*device) + ", but this process sees " +
                          std::to_string(devices) + visible_devices() +
                          ": fewer GPUs than ranks. Start at most " + std::to_string(devices) +
                          " processes on this machine, make more GPUs visible, or use gloo_cpu");
}

}  // namespace

Failure create_communicator(const db_communicator_params& params, const Settings& settings,
                            db_communicator** result) {
  Failure failure = check_single_nccl();
  Setup setup{0, params.default_timeout_ns, settings};
  if (failure.ok()) failure = choose_device(params, &setup.device);
  if (!failure.ok()) return failure;
  const OnDevice on_device(setup.device);
  const int64_t began = now_ns();
  ncclComm_t comm = nullptr;
  failure = connect(params, setup.settings, setup.device, &comm);
  if (failure.ok()) failure = open(setup, comm, result);
  if (failure.ok() && params.host != nullptr && params.host->log != nullptr) {
    const std::string text = "connected " + std::to_string(params.size) + " ranks in " +
                             std::to_string((now_ns() - began) / 1000) +
                             " us, this one on CUDA device " + std::to_string(setup.device) + "; " +
                             describe(libraries());
    params.host->log(params.host->context, DB_LOG_INFO, "nccl", text.c_str());
  }
  return failure;
}

}  // namespace db::nccl
