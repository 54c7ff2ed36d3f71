// Stable Diffusion's parts, in memory and from their files, against the results of transformers and
// diffusers that make_diffusion_fixtures.py stored.
#include <ATen/core/grad_mode.h>
#include <coupler/big_model.h>
#include <coupler/empty_weights.h>
#include <coupler/state_dict.h>
#include <coupler/text_to_image.h>
#include <coupler/tokenizer.h>

#include <string>
#include <vector>

#include "fixture.h"

namespace coupler::diffusion {
namespace {

const std::string kFolder = "diffusion/";

at::Tensor reference(const std::string& name) {
  return SafeTensors::open(fixture(kFolder + "reference.safetensors")).tensor(name);
}

void expect_near(const at::Tensor& ours, const std::string& name) {
  const at::Tensor theirs = reference(name);
  ASSERT_EQ(ours.sizes(), theirs.sizes()) << name;
  EXPECT_LT(ours.sub(theirs).abs().max().item<double>(), 1e-4) << name;
}

ModelConfig config_of(const std::string& part) {
  return ModelConfig::open(fixture(kFolder + part));
}

// In memory, and in place in its file.
template <class Model, class Test>
void for_every_place(const std::string& part, const std::string& file,
                     std::string (*rename)(const std::string&), const Test& test) {
  const at::NoGradGuard no_grad;
  for (const char* const place : {"cpu", "disk"}) {
    std::shared_ptr<Model> model;
    {
      const EmptyWeights empty;
      model = std::make_shared<Model>(config_of(part));
    }
    LoadAndDispatchOptions options;
    options.device_map = DeviceMap{{"", place}};
    options.dtype = at::kFloat;
    options.rename = rename;
    const auto placed =
        load_checkpoint_and_dispatch(*model, fixture(kFolder + part + "/" + file), options);
    test(*model);
  }
}

constexpr const char* kWeights = "diffusion_pytorch_model.safetensors";

TEST(DiffusionTextEncoder, Tokens_GiveTransformersStates) {
  for_every_place<TextEncoder>(
      "text_encoder", "model.safetensors", text_encoder_checkpoint_name, [](TextEncoder& model) {
        EXPECT_EQ(model.width(), 16);
        EXPECT_EQ(model.positions(), 77);
        expect_near(model.forward(reference("text.tokens")), "text.states");
      });
}

void expect_diffusers(const std::string& name, UNet& model) {
  for (const char* const size : {".8x8", ".5x7"}) {
    const std::string key = name + size;
    expect_near(model.forward(reference(key + ".latents"), 741, reference("unet.states")),
                key + ".output");
  }
}

TEST(DiffusionUNet, Latents_GiveDiffusersNoise) {
  for_every_place<UNet>("unet", kWeights, nullptr,
                        [](UNet& model) { expect_diffusers("unet", model); });
}

TEST(DiffusionUNet, LinearProjectionsAndHeadsOfEachLevel_GiveDiffusersNoise) {
  for_every_place<UNet>("linear_unet", kWeights, nullptr,
                        [](UNet& model) { expect_diffusers("linear", model); });
}

// Strips of four rows, and of the remainder of six.
TEST(DiffusionVae, Latents_GiveDiffusersImage) {
  for_every_place<VaeDecoder>("vae", kWeights, vae_checkpoint_name, [](VaeDecoder& model) {
    EXPECT_EQ(model.factor(), 4);
    for (const char* const size : {"vae.8x8", "vae.6x5"}) {
      const std::string key = size;
      expect_near(model.forward(reference(key + ".latents")), key + ".image");
    }
  });
}

TEST(DiffusionVae, OlderNamesAndTheEncoder_AreKnown) {
  EXPECT_EQ(vae_checkpoint_name("decoder.mid_block.attentions.0.proj_attn.weight"),
            "decoder.mid_block.attentions.0.to_out.0.weight");
  EXPECT_EQ(vae_checkpoint_name("decoder.mid_block.attentions.0.key.bias"),
            "decoder.mid_block.attentions.0.to_k.bias");
  EXPECT_EQ(vae_checkpoint_name("encoder.conv_in.weight"), "");
  EXPECT_EQ(vae_checkpoint_name("quant_conv.weight"), "");
  EXPECT_EQ(text_encoder_checkpoint_name("text_model.embeddings.position_ids"), "");
}

ModelConfig scheduler(const std::string& name) {
  const nlohmann::json all = read_json(fixture(kFolder + "schedulers.json"));
  return ModelConfig::parse(all.at(name).at("config").dump(), "scheduler_config.json");
}

TEST(Ddim, FiveSteps_GiveDiffusersLatents) {
  const nlohmann::json all = read_json(fixture(kFolder + "schedulers.json"));
  for (const auto& [name, description] : all.items()) {
    const Ddim ddim(scheduler(name), 5);
    EXPECT_EQ(ddim.timesteps(), description.at("timesteps").get<std::vector<int64_t>>()) << name;
    const at::Tensor outputs = reference("ddim." + name + ".outputs");
    const at::Tensor results = reference("ddim." + name + ".results");
    at::Tensor latents = reference("ddim." + name + ".latents");
    for (int64_t i = 0; i < 5; ++i) {
      latents = ddim.step(outputs[i], ddim.timesteps()[static_cast<size_t>(i)], latents);
      EXPECT_LT(latents.sub(results[i]).abs().max().item<double>(), 1e-4) << name << i;
    }
  }
}

TEST(Ddim, WrongInput_IsRefusedWithWhatToDo) {
  expect_message([] { const Ddim none(scheduler("stable"), 0); },
                 {"0 steps requested", "1 to 1000"});
  expect_message([] { const Ddim many(scheduler("stable"), 1001); }, {"1001 steps"});
  const auto with = [](const char* key, const nlohmann::json& value) {
    nlohmann::json document = read_json(fixture(kFolder + "scheduler/scheduler_config.json"));
    document[key] = value;
    return message_of(
        [&] { const Ddim made(ModelConfig::parse(document.dump(), "scheduler_config.json"), 5); });
  };
  EXPECT_NE(with("beta_schedule", "cosine")
                .find("'cosine' is not supported; supported: "
                      "scaled_linear, linear"),
            std::string::npos);
  EXPECT_NE(with("prediction_type", "flow").find("'flow' is not supported"), std::string::npos);
  EXPECT_NE(with("thresholding", true).find("'thresholding' is not supported"), std::string::npos);
  EXPECT_NE(with("steps_offset", 400).find("leads to timestep 1200"), std::string::npos);
}

// From vocab.json and merges.txt, and from the tokenizer.json that newer versions write.
TEST(ClipTokenizer, Prompts_GiveTransformersTokens) {
  const nlohmann::json table = read_json(fixture(kFolder + "prompts.json"));
  ASSERT_GE(table.size(), 20U);
  for (const char* const path : {"tokenizer", "tokenizer.json"}) {
    const Tokenizer tokenizer = Tokenizer::open(fixture(kFolder + path));
    for (const nlohmann::json& row : table)
      EXPECT_EQ(tokenizer.encode(row.at("text")), row.at("ids").get<std::vector<int64_t>>())
          << path << ": " << row.at("text");
  }
  const Tokenizer tokenizer = Tokenizer::open(fixture(kFolder + "tokenizer"));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("The  License, it's")), "the license , it 's");
}

template <class Model>
std::string refusal(const std::string& part, const char* key, const nlohmann::json& value) {
  nlohmann::json document = read_json(fixture(kFolder + part + "/config.json"));
  document[key] = value;
  return message_of([&] { const Model model(ModelConfig::parse(document.dump())); });
}

void expect_part(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << part << "\n  in: " << message;
}

TEST(DiffusionModels, WrongConfigs_AreRefusedWithThoseThatAreThere) {
  expect_part(refusal<UNet>("unet", "_class_name", "FluxTransformer2DModel"),
              "'FluxTransformer2DModel' is not supported; supported: CLIPTextModel "
              "(text_encoder), UNet2DConditionModel (unet), AutoencoderKL (vae)");
  expect_part(refusal<UNet>("unet", "down_block_types", {"AttnDownBlock2D", "DownBlock2D"}),
              "'AttnDownBlock2D' is not supported; supported: CrossAttnDownBlock2D, DownBlock2D");
  expect_part(refusal<UNet>("unet", "addition_embed_type", "text_time"), "'addition_embed_type'");
  expect_part(refusal<UNet>("unet", "block_out_channels", {8}), "must have one element for each");
  expect_part(refusal<UNet>("unet", "attention_head_dim", 3), "does not divide");
  expect_part(refusal<UNet>("unet", "norm_num_groups", 5),
              "is not a multiple of 'norm_num_groups'");
  expect_part(refusal<UNet>("unet", "transformer_layers_per_block", 2), "must be 1");
  expect_part(refusal<VaeDecoder>("vae", "_class_name", "VQModel"), "'VQModel' is not supported");
  expect_part(refusal<VaeDecoder>("vae", "shift_factor", 0.1), "'shift_factor' is not supported");
  expect_part(refusal<VaeDecoder>("vae", "up_block_types", {"AttnUpDecoderBlock2D"}),
              "'AttnUpDecoderBlock2D' is not supported; only UpDecoderBlock2D is");
  expect_part(refusal<TextEncoder>("text_encoder", "model_type", "t5"),
              "'t5' is not supported as a text encoder; supported: clip_text_model");
  expect_part(refusal<TextEncoder>("text_encoder", "hidden_act", "mish"),
              "'mish' is not supported");
}

}  // namespace
}  // namespace coupler::diffusion
