// StepLog: what a dry run recorded of a program: its models, its optimizers, and the memory that
// one training step takes and gives back. Plain data, without values; written by the program, read
// by `coupler estimate`.
#pragma once

#include <coupler/processes.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace coupler::estimate {

struct LoggedModule {
  std::string name;  // dotted path; "": the model itself
  std::string type;
  int64_t parent = -1;
};

struct LoggedParameter {
  std::string name;
  uint64_t module = 0;
  std::vector<uint64_t> sizes;
  int32_t dtype = 0;  // a db_dtype
  uint64_t element_size = 4;
  bool trainable = true;
  bool in_memory = true;  // before prepare(); false if built inside EmptyWeights
  // Of the whole parameter, if sizes are those of this rank's part of it; 0 if it is not divided.
  // A stage of a pipeline has no elements of what other stages keep.
  uint64_t whole_numel = 0;
  // The whole is never in memory: it is divided while it is drawn, a chunk at a time.
  bool in_chunks = false;

  bool divided() const { return whole_numel != 0; }
  // Makes it one that only other stages of a pipeline keep.
  void leave_to_others();
  uint64_t numel() const;
  uint64_t bytes() const { return numel() * element_size; }
  uint64_t whole_bytes() const { return (divided() ? whole_numel : numel()) * element_size; }
};

struct LoggedModel {
  std::string name;
  std::vector<LoggedModule> modules;
  std::vector<LoggedParameter> parameters;
  uint64_t first_parameter = 0;  // its number in events

  bool divided() const;  // any of its parameters is
};

// One event of the step, in order. Storages and parameters are numbered; a storage is made once.
struct StepEvent {
  enum class Kind : uint8_t {
    kMade,      // storage, of bytes
    kGone,      // storage
    kUsed,      // parameter: an operation reads it
    kGradient,  // parameter: its gradient is complete and in storage; bytes 1: it is reduced now
    kBackwardBegan,  // bytes 1: gradients are reduced
    kBackwardEnded,  // likewise
    kStepped,        // an optimizer has updated parameters
  };
  Kind kind = Kind::kMade;
  uint64_t index = 0;  // of the parameter
  uint64_t storage = 0;
  uint64_t bytes = 0;
};

// The pipeline that a model was divided into, and the stage of it that the process stood for.
struct LoggedPipeline {
  int stages = 0;  // 0: the model was prepared without one
  int stage = 0;
  int64_t micro_batches = 1;
  int virtual_stages = 1;
};

struct StepLog {
  std::string mixed_precision;
  std::vector<std::string> activation_checkpointing;
  std::vector<LoggedModel> models;
  uint64_t buffer_bytes = 0;    // of the models
  uint64_t base_bytes = 0;      // resident in the process apart from the step's tensors
  std::string optimizer;        // for people
  bool optimizer_fused = true;  // runs on flat memory, in place
  double optimizer_factor = 0;  // bytes of state per byte of trainable parameters
  uint64_t experts = 0;  // the most ranks over which those of all mixtures divide; 0: it has none
  uint64_t initial = 0;  // the first events, which only list what exists when the step begins
  std::vector<StepEvent> events;
  // The job's mesh (Mesh::Sizes), of which the process was the first rank of its stage: its layers
  // are divided over tensor, its sequences over context, its experts over expert.
  std::array<int, Mesh::kDimensions> mesh = {1, 1, 1, 1, 1, 1};
  LoggedPipeline pipeline = {};

  uint64_t parameter_count() const;
  uint64_t trainable_bytes() const;
};

std::string write_step_log(const StepLog& log);
// Throws Error(kInternal) if write_step_log did not produce the text.
StepLog read_step_log(const std::string& text);

}  // namespace coupler::estimate
