// All of Coupler for a training program, including LibTorch, except coupler/objects.h and
// coupler/launch.h. If compile time matters, include coupler/accelerator.h and the LibTorch headers
// you use instead.
#pragma once

#include <coupler/accelerator.h>
#include <coupler/accelerator_options.h>
#include <coupler/activation_checkpoint.h>
#include <coupler/autocast.h>
#include <coupler/batch_size.h>
#include <coupler/big_model.h>
#include <coupler/checkpoint.h>
#include <coupler/comm_hook.h>
#include <coupler/context_parallel.h>
#include <coupler/data_loader.h>
#include <coupler/dataset.h>
#include <coupler/device_map.h>
#include <coupler/empty_weights.h>
#include <coupler/error.h>
#include <coupler/group.h>
#include <coupler/hooks.h>
#include <coupler/layerwise_casting.h>
#include <coupler/local_sgd.h>
#include <coupler/log_values.h>
#include <coupler/logging.h>
#include <coupler/lora.h>
#include <coupler/mixture_of_experts.h>
#include <coupler/nested.h>
#include <coupler/optimizer.h>
#include <coupler/pipeline_layers.h>
#include <coupler/pipeline_parallel.h>
#include <coupler/processes.h>
#include <coupler/quantize.h>
#include <coupler/row.h>
#include <coupler/sampler.h>
#include <coupler/state_dict.h>
#include <coupler/sync_batch_norm.h>
#include <coupler/tensor_parallel.h>
#include <coupler/tracker.h>
#include <torch/torch.h>
