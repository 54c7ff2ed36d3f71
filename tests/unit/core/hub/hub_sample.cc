// Prints the folder of a model, for check_hub.py: hub_sample NAME
#include <coupler/error.h>

#include <cstdio>

#include "hub/model_files.h"

int main(int argc, char** argv) {
  coupler::install_terminate_handler();
  if (argc != 2) {
    std::fputs("usage: hub_sample NAME\n", stderr);
    return 2;
  }
  std::puts(coupler::hub::model_folder(argv[1], coupler::hub::ModelUse::kLanguageModel).c_str());
  return 0;
}
