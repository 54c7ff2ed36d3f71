// The common includes of most tests that use LibTorch, compiled once for all of them
// (cmake/Precompiled.cmake). Never included by hand: each source includes what it uses.
#pragma once

#include <coupler/accelerator.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>
