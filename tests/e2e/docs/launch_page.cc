// The program in docs/launch-from-code.md, compiled from the page and run.
#include <coupler/coupler.h>
#include <coupler/launch.h>
#include <torch/optim/adamw.h>

#include <iostream>

struct NetImpl : torch::nn::Module {
  torch::nn::Linear head = register_module("head", torch::nn::Linear(64, 10));
};
TORCH_MODULE(Net);

#include "launch_page.inc"
