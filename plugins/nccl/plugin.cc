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

Failure read_settings(const Options& options, Settings* settings) {
  int64_t max_ctas = 0;
  Failure failure = read_number(options, "max_ctas", 0, 64, &max_ctas);
  settings->high_priority = options.boolean("high_priority_stream");
  settings->max_ctas = static_cast<int32_t>(max_ctas);
  settings->network = options.string("network");
  return failure;
}

db_status create(const db_communicator_params* params, db_communicator** result, db_error* error) {
  return guarded("nccl: ", error, [&] {
    Options options;
    Settings settings;
    Failure failure = read_params(kPointersTo<kOptions>.data(), kPointersTo<kOptions>.size(),
                                  params, result, &options);
    if (failure.ok()) failure = read_settings(options, &settings);
    if (failure.ok() && !libraries().problem.empty())
      failure = Failure::make(DB_ERR_UNSUPPORTED, "nccl: " + libraries().problem);
    if (failure.ok()) failure = create_communicator(*params, settings, result);
    return failure;
  });
}

constexpr DistributedBackend kBackend = {
    sizeof(DistributedBackend),
    DB_ABI_MAJOR,
    DB_ABI_MINOR,
    "nccl",
    "0.1.0",
    "NVIDIA GPUs: CUDA tensors over NCCL, ordered by CUDA streams.",
    DB_CAP_ABORT | DB_CAP_SPLIT | DB_CAP_STREAM_ORDERED | DB_CAP_CUDA_MEMORY,
    probe,
    default_options<kOptions>,
    create,
    nullptr};  // get_extension

}  // namespace
}  // namespace db::nccl

extern "C" DB_EXPORT const DistributedBackend* coupler_distributed_backend_v1(void) {
  return &db::nccl::kBackend;
}
