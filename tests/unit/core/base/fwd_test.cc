// A user's header that names Coupler's types compiles without LibTorch on the include path.
#include <coupler/fwd.h>
#include <gtest/gtest.h>

#include <type_traits>

namespace coupler {
namespace {

struct Trainer {
  Accelerator& accelerator;
  DataLoader<Dataset>* loader;
  Optimizer* optimizer;
  ReduceOp reduction;
  double (*step)(const Trainer&, ProgressBar&);
};

TEST(Fwd, NamesAreEnoughForDeclarations) {
  EXPECT_TRUE((std::is_invocable_r_v<double, decltype(Trainer::step), Trainer&, ProgressBar&>));
}

}  // namespace
}  // namespace coupler
