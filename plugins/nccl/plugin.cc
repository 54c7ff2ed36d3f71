// The nccl backend's table: its name, options, probe and create.
#include <coupler/distributed_backend.h>

#include <string>

#include "common/options.h"
#include "nccl/communicator.h"
#include "nccl/library.h"

namespace db::nccl {
namespace {

constexpr db_option kOptions[] = {
    bool_option("high_priority_stream", true,
                "Whether communication uses a CUDA stream of the highest priority, so that it "
                "starts alongside computation instead of after it."),
    i64_option("max_ctas", 0,
               "Maximum number of GPU thread blocks that NCCL may use: fewer leave more of the GPU "
               "to computation. 0 to 64; 0: NCCL's choice."),
    string_option("network", "",
                  "The network that NCCL uses between machines: IB, Socket, or the name of an NCCL "
                  "plugin. Empty: NCCL's choice."),
};
constexpr auto kDefaults = pointers_to(kOptions);

const db_option* const* default_options(uint64_t* count) {
  if (count != nullptr) *count = kDefaults.size();
  return kDefaults.data();
}

db_status probe(const db_host*, int32_t* score, char* reason, uint64_t reason_capacity) {
  try {
    const Libraries& found = libraries();
    *score = found.problem.empty() ? 100 : 0;
    const std::string text = found.problem.empty() ? describe(found) : found.problem;
    copy_text(reason, reason_capacity, text.c_str());
    return DB_OK;
  } catch (const std::exception&) {
    *score = 0;
    copy_text(reason, reason_capacity, "out of memory");
    return DB_ERR_NO_MEMORY;
  }
}

Failure read_settings(const db_communicator_params& params, Settings* settings) {
  Options options;
  Failure failure = Options::parse(kDefaults.data(), kDefaults.size(), params.options,
                                   params.option_count, &options);
  int64_t max_ctas = 0;
  if (failure.ok()) failure = read_number(options, "max_ctas", 0, 64, &max_ctas);
  if (!failure.ok()) return failure;
  settings->high_priority = options.boolean("high_priority_stream");
  settings->max_ctas = static_cast<int32_t>(max_ctas);
  settings->network = options.string("network");
  return {};
}

Failure check(const db_communicator_params& params) {
  const std::string place =
      "nccl: rank " + std::to_string(params.rank) + " of " + std::to_string(params.size);
  if (params.size < 1 || params.rank < 0 || params.rank >= params.size)
    return Failure::make(DB_ERR_INVALID_ARGUMENT, place + ": ranks go from 0 to size - 1");
  if (params.default_timeout_ns <= 0)
    return Failure::make(DB_ERR_INVALID_ARGUMENT, "nccl: default_timeout_ns must be positive");
  if (params.size > 1 && params.store == nullptr)
    return Failure::make(DB_ERR_INVALID_ARGUMENT, place + ": store is NULL");
  return {};
}

db_status create(const db_communicator_params* params, db_communicator** result, db_error* error) {
  if (result != nullptr) *result = nullptr;
  if (params == nullptr || result == nullptr ||
      !DB_HAS(params, db_communicator_params, interface_name))
    return report(DB_ERR_INVALID_ARGUMENT,
                  "nccl: create: params or result is NULL, or params.struct_size is too small",
                  error);
  try {
    Settings settings;
    Failure failure = read_settings(*params, &settings);
    if (failure.ok()) failure = check(*params);
    if (failure.ok() && !libraries().problem.empty())
      failure = Failure::make(DB_ERR_UNSUPPORTED, "nccl: " + libraries().problem);
    if (!failure.ok()) return report(failure, error);
    return create_communicator(*params, settings, result, error);
  } catch (const std::exception&) {
    return report(DB_ERR_NO_MEMORY, "nccl: create: out of memory", error);
  }
}

const void* get_extension(const char*) { return nullptr; }

constexpr DistributedBackend kBackend = {
    sizeof(DistributedBackend),
    DB_ABI_MAJOR,
    DB_ABI_MINOR,
    "nccl",
    "0.1.0",
    "NVIDIA GPUs: CUDA tensors over NCCL, ordered by CUDA streams.",
    DB_CAP_ABORT | DB_CAP_SPLIT | DB_CAP_STREAM_ORDERED | DB_CAP_CUDA_MEMORY,
    probe,
    default_options,
    create,
    get_extension};

}  // namespace
}  // namespace db::nccl

extern "C" DB_EXPORT const DistributedBackend* coupler_distributed_backend_v1(void) {
  return &db::nccl::kBackend;
}
