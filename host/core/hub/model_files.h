// The files of a model that a use needs, and the folder that has them. [any-thread]
#pragma once

#include <string>

#include "hub/settings.h"

namespace coupler::hub {

// What is read from a model's folder.
enum class ModelUse {
  kConfig,         // config.json
  kTokenizer,      // tokenizer.json, or CLIP's vocab.json and merges.txt
  kWeights,        // model.safetensors, or several and an index; pytorch_model.bin without these
  kLanguageModel,  // configuration and weights, and the tokenizer if there is one
  kEncoder,        // the same, and what sentence-transformers adds
  kTextToImage,    // a folder of diffusers: the scheduler, the tokenizer, three models
};

// The folder of a model that is named by a path or by its name on the Hugging Face Hub.
//
// A path that exists is returned as it is, and so is a text that cannot be a Hub name. Otherwise it
// is the model's folder in the Hugging Face cache, which other programs share. A model that is
// there is used as it is, without asking the Hub for a newer one. What is missing is downloaded, by
// one process of the machine while the others wait for it; if that fails, all of them throw.
//
// Throws Error(kIo) naming the model, the cache and what to do; Error(kConfig) for a wrong
// variable.
std::string model_folder(const std::string& path_or_name, ModelUse use);
// The same with these settings instead of the environment's.
std::string model_folder(const std::string& path_or_name, ModelUse use,
                         const HubSettings& settings);

// The model's folder in the cache if it has everything that the use needs; "" otherwise, and for a
// text that cannot be a Hub name. Asks no server.
std::string cached_model_folder(const std::string& name, ModelUse use, const HubSettings& settings);

}  // namespace coupler::hub
