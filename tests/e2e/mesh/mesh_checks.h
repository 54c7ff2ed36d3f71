// The checks of mesh_checks. Which mesh they run on is the job's configuration.
#pragma once

#include <vector>

#include "check.h"

// The ranks that get different samples.
inline constexpr const char* kSamples = "data+shard+expert";

std::vector<Check> group_checks();
std::vector<Check> mesh_sample_checks();
std::vector<Check> mesh_training_checks();
std::vector<Check> mesh_stage_checks();
std::vector<Check> mesh_tensor_checks();
std::vector<Check> mesh_sequence_checks();
std::vector<Check> mesh_adapter_checks();
std::vector<Check> mesh_fp8_checks();
std::vector<Check> mesh_context_checks();
std::vector<Check> mesh_expert_checks();
std::vector<Check> mesh_loss_checks();
std::vector<Check> mesh_dropout_checks();
