// What most sources that see LibTorch include, compiled once for all of them
// (cmake/Precompiled.cmake). Never included by hand: each source includes what it uses.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <nlohmann/json.hpp>
