// The checks of mesh_checks. Which mesh they run on is the job's configuration.
#pragma once

#include <vector>

#include "check.h"

std::vector<Check> group_checks();
std::vector<Check> mesh_sample_checks();
std::vector<Check> mesh_training_checks();
