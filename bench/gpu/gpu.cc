// GPU operations, measured against the layer below us:
//   bench gpu submit ROUNDS    host microseconds to submit an all_reduce of 1 KiB with world 1;
//                              prints "OURS RAW ORDERED" per round, where RAW is ncclAllReduce
//                              itself, and ORDERED adds the three calls of CUDA that order it
//                              after and before other work, on a stream of its own
//   bench gpu stream ROUNDS    GB/s of weights streamed from page-locked memory during a forward,
//                              and of plain copies of the same size; prints "OURS COPY" per round
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <coupler/big_model.h>
#include <coupler/error.h>
#include <dlfcn.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "comm/communicator.h"
#include "device/device.h"
#include "device/device_memory.h"
#include "program.h"

namespace coupler::bench::gpu {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_of(const std::function<void()>& action) {
  const auto start = Clock::now();
  action();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void synchronize(c10::Device device) {
  c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

// NCCL's own functions, from the library that the plugin has already loaded.
struct RawNccl {
  using Comm = void*;
  using InitAll = int (*)(Comm*, int, const int*);
  using AllReduce = int (*)(const void*, void*, size_t, int, int, Comm, void*);
  explicit RawNccl(int device) {
    void* const library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) throw std::runtime_error("libnccl.so.2 is not loaded");
    all_reduce = reinterpret_cast<AllReduce>(::dlsym(library, "ncclAllReduce"));
    const auto init = reinterpret_cast<InitAll>(::dlsym(library, "ncclCommInitAll"));
    if (all_reduce == nullptr || init == nullptr || init(&comm, 1, &device) != 0) {
      throw std::runtime_error("ncclCommInitAll failed");
    }
  }
  AllReduce all_reduce = nullptr;
  Comm comm = nullptr;
};

// CUDA's own functions, from the runtime that LibTorch has already loaded.
class OrderedNccl {
 public:
  explicit OrderedNccl(const RawNccl& nccl) : nccl_(nccl) {
    const auto create_stream = function<int(void**, unsigned)>("cudaStreamCreateWithFlags");
    const auto create_event = function<int(void**, unsigned)>("cudaEventCreateWithFlags");
    constexpr unsigned kNonBlocking = 1, kDisableTiming = 2;
    if (create_stream(&own_, kNonBlocking) != 0 || create_event(&ready_, kDisableTiming) != 0 ||
        create_event(&done_, kDisableTiming) != 0) {
      throw std::runtime_error("CUDA makes no stream or event");
    }
  }
  void all_reduce(void* data, size_t count, int type, int sum, void* stream) const {
    record_(ready_, stream);
    wait_(own_, ready_, 0);
    nccl_.all_reduce(data, data, count, type, sum, nccl_.comm, own_);
    record_(done_, own_);
  }

 private:
  template <class Function>
  static Function* function(const char* name) {
    void* const found = ::dlsym(RTLD_DEFAULT, name);
    if (found == nullptr) throw std::runtime_error(std::string("CUDA's runtime has no ") + name);
    return reinterpret_cast<Function*>(found);
  }

  const RawNccl& nccl_;
  int (*const record_)(void*, void*) = function<int(void*, void*)>("cudaEventRecord");
  int (*const wait_)(void*, void*,
                     unsigned) = function<int(void*, void*, unsigned)>("cudaStreamWaitEvent");
  void *own_ = nullptr, *ready_ = nullptr, *done_ = nullptr;
};

void submit(int rounds, c10::Device device) {
  constexpr int kCalls = 2000, kFloat32 = 7, kSum = 0;
  config::BackendConfig backend;
  backend.use = "nccl";
  // Without DeviceMemory: with world size 1 the host would copy instead of calling the backend.
  const auto communicator = comm::Communicator::create({.plugin = plugin::Plugin::load(backend),
                                                        .process = {},
                                                        .store = nullptr,
                                                        .backend = &backend});
  const at::Tensor values = at::ones({256}, at::TensorOptions(device));
  const device::TorchDeviceMemory memory(device);
  db_op op{};
  op.kind = DB_ALL_REDUCE;
  op.dtype = DB_F32;
  op.reduce = DB_SUM;
  op.send = op.recv = values.mutable_data_ptr();
  op.count = 256;
  op.memory = DB_MEMORY_CUDA;
  op.stream = memory.stream();
  const auto ours = [&] {
    std::vector<comm::Work> works;
    works.reserve(kCalls);
    const double seconds = seconds_of([&] {
      for (int i = 0; i < kCalls; ++i) works.push_back(communicator->submit(op));
    });
    synchronize(device);
    return seconds;
  };
  ours();
  const RawNccl raw(device.index());
  const auto theirs = [&] {
    const double seconds = seconds_of([&] {
      for (int i = 0; i < kCalls; ++i) {
        raw.all_reduce(op.send, op.recv, op.count, kFloat32, kSum, raw.comm, op.stream);
      }
    });
    synchronize(device);
    return seconds;
  };
  theirs();
  const OrderedNccl ordered(raw);
  const auto in_order = [&] {
    const double seconds = seconds_of([&] {
      for (int i = 0; i < kCalls; ++i) {
        ordered.all_reduce(op.recv, op.count, kFloat32, kSum, op.stream);
      }
    });
    synchronize(device);
    return seconds;
  };
  in_order();
  for (int round = 0; round < rounds; ++round) {
    const double mine = ours(), raw_seconds = theirs(), ordered_seconds = in_order();
    std::printf("%.4f %.4f %.4f\n", mine / kCalls * 1e6, raw_seconds / kCalls * 1e6,
                ordered_seconds / kCalls * 1e6);
  }
}

void stream(int rounds, c10::Device device) {
  constexpr int kLayers = 48, kWidth = 4096;  // 64 MiB each
  const at::NoGradGuard no_grad;
  torch::nn::Sequential model;
  for (int i = 0; i < kLayers; ++i) {
    model->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
  }
  const double bytes = double{kLayers} * kWidth * kWidth * sizeof(float);
  const auto offloaded = cpu_offload(*model, device);
  const at::Tensor input = at::ones({1, kWidth}, at::TensorOptions(device));
  const at::Tensor host =
      at::empty({kWidth, kWidth}, at::TensorOptions(at::kFloat).pinned_memory(true));
  const at::Tensor there =
      at::empty({kWidth, kWidth}, at::TensorOptions(at::kFloat).device(device));
  const auto forward = [&] {
    model->forward(input);
    synchronize(device);
  };
  const auto copies = [&] {
    for (int i = 0; i < kLayers; ++i) there.copy_(host, /*non_blocking=*/true);
    synchronize(device);
  };
  forward();
  copies();
  for (int round = 0; round < rounds; ++round) {
    const double ours = seconds_of(forward), plain = seconds_of(copies);
    std::printf("%.4f %.4f\n", bytes / ours * 1e-9, bytes / plain * 1e-9);
  }
}

}  // namespace

int program(int argc, char** argv) {
  const std::string what = argc == 3 ? argv[1] : "";
  if (what != "submit" && what != "stream") {
    std::fputs("usage: bench gpu submit|stream ROUNDS\n", stderr);
    return 2;
  }
  try {
    const c10::Device device = device::choose_device("cuda", {});
    device::make_current(device);
    const int rounds = std::atoi(argv[2]);
    what == "submit" ? submit(rounds, device) : stream(rounds, device);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench gpu: %s\n", error.what());
    return 1;
  }
  return 0;
}

const Registration kRegistration("gpu", program);

}  // namespace coupler::bench::gpu
