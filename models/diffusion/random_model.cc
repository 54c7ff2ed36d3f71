// Writes a folder with Stable Diffusion 1's shapes and random weights.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <coupler/empty_weights.h>
#include <coupler/text_to_image.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "base/durable_file.h"
#include "tensors/safetensors.h"
#include "unicode.h"
#include "weights/write_weights.h"

namespace coupler::diffusion {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTextEncoder = R"({
  "architectures": ["CLIPTextModel"], "model_type": "clip_text_model",
  "vocab_size": 49408, "hidden_size": 768, "intermediate_size": 3072, "projection_dim": 768,
  "num_hidden_layers": 12, "num_attention_heads": 12, "max_position_embeddings": 77,
  "hidden_act": "quick_gelu", "layer_norm_eps": 1e-05,
  "bos_token_id": 49406, "eos_token_id": 49407, "pad_token_id": 1
}
)";
constexpr const char* kUNet = R"({
  "_class_name": "UNet2DConditionModel", "sample_size": 64, "in_channels": 4, "out_channels": 4,
  "down_block_types": ["CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D",
                       "DownBlock2D"],
  "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D",
                     "CrossAttnUpBlock2D"],
  "block_out_channels": [320, 640, 1280, 1280], "layers_per_block": 2, "attention_head_dim": 8,
  "cross_attention_dim": 768, "norm_num_groups": 32, "norm_eps": 1e-05, "act_fn": "silu",
  "center_input_sample": false, "flip_sin_to_cos": true, "freq_shift": 0, "downsample_padding": 1,
  "mid_block_scale_factor": 1
}
)";
constexpr const char* kVae = R"({
  "_class_name": "AutoencoderKL", "sample_size": 512, "in_channels": 3, "out_channels": 3,
  "latent_channels": 4, "block_out_channels": [128, 256, 512, 512], "layers_per_block": 2,
  "norm_num_groups": 32, "act_fn": "silu", "scaling_factor": 0.18215,
  "down_block_types": ["DownEncoderBlock2D", "DownEncoderBlock2D", "DownEncoderBlock2D",
                       "DownEncoderBlock2D"],
  "up_block_types": ["UpDecoderBlock2D", "UpDecoderBlock2D", "UpDecoderBlock2D",
                     "UpDecoderBlock2D"]
}
)";
constexpr const char* kScheduler = R"({
  "_class_name": "DDIMScheduler", "num_train_timesteps": 1000, "beta_start": 0.00085,
  "beta_end": 0.012, "beta_schedule": "scaled_linear", "clip_sample": false,
  "set_alpha_to_one": false, "steps_offset": 1, "prediction_type": "epsilon"
}
)";

// Values depend only on the seed and the tensor's name. Linear layers and convolutions preserve the
// magnitude of their input; norms have weight 1 and bias 0.
at::Tensor drawn(const at::Tensor& like, const std::string& name, uint64_t seed) {
  const bool weight = name.ends_with(".weight");
  if (like.dim() == 1) return at::full(like.sizes(), weight ? 1.0 : 0.0, at::kFloat);
  for (const char letter : name) seed = seed * 1099511628211U + static_cast<unsigned char>(letter);
  const bool embedding = name.find("embedding.weight") != std::string::npos;
  const double inputs =
      static_cast<double>(like.numel()) / static_cast<double>(std::max<int64_t>(like.size(0), 1));
  const double bound = std::sqrt(3.0 / (embedding ? 4.0 : inputs));
  return at::empty(like.sizes(), at::kFloat)
      .uniform_(-bound, bound, at::detail::createCPUGenerator(seed));
}

template <class Model>
void write_part(const fs::path& folder, const char* config, const char* file,
                const RandomModelOptions& options) {
  fs::create_directories(folder);
  std::shared_ptr<Model> model;
  {
    const EmptyWeights empty;
    model = std::make_shared<Model>(ModelConfig::parse(config));
  }
  weights::WeightSource source;
  for (const auto& item : model->named_parameters()) {
    source.tensors.push_back(
        {.name = item.key(),
         .dtype = safetensors::dtype_of(options.dtype, item.key()),
         .shape = item.value().sizes().vec(),
         .read = [name = item.key(), like = item.value(), options](const weights::ByteSink& sink) {
           const at::NoGradGuard no_grad;
           const at::Tensor values = drawn(like, name, options.seed).to(options.dtype);
           sink(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
         }});
  }
  weights::write_weights(source, (folder / file).string(), std::nullopt);
  // Written last: a folder with config.json has its weights.
  replace_file((folder / "config.json").string(), config);
}

// The first 512 tokens of CLIP's vocabulary (single bytes, inside and at the end of words) and its
// last two.
void write_tokenizer(const fs::path& folder) {
  fs::create_directories(folder);
  nlohmann::json vocabulary;
  int64_t next = 0;
  for (const char* const end : {"", "</w>"}) {
    for (int byte = 0; byte < 256; ++byte)
      vocabulary[to_byte_alphabet(std::string(1, static_cast<char>(byte))) + end] = next++;
  }
  vocabulary["<|startoftext|>"] = 49406;
  vocabulary["<|endoftext|>"] = 49407;
  replace_file((folder / "merges.txt").string(), "#version: 0.2\n");
  replace_file((folder / "vocab.json").string(), vocabulary.dump() + "\n");
}

}  // namespace

void write_random_stable_diffusion(const std::string& folder, const RandomModelOptions& options) {
  const fs::path root(folder);
  write_part<TextEncoder>(root / "text_encoder", kTextEncoder, "model.safetensors", options);
  constexpr const char* kFile = "diffusion_pytorch_model.safetensors";
  write_part<UNet>(root / "unet", kUNet, kFile, options);
  write_part<VaeDecoder>(root / "vae", kVae, kFile, options);
  write_tokenizer(root / "tokenizer");
  fs::create_directories(root / "scheduler");
  replace_file((root / "scheduler" / "scheduler_config.json").string(), kScheduler);
}

}  // namespace coupler::diffusion
